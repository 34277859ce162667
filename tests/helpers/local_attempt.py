"""An ended attempt with one node on this machine, of which only the journal exists."""

from __future__ import annotations

from pathlib import Path

from launcher.engines.node_handle import AttemptHandle, NodeHandle
from launcher.engines.process import Processes
from launcher.hosts import Host
from launcher.plan.plan import Place
from launcher.ssh.host_connection import HostConnection


def local_attempt(
    folder: Path, journal: bytes, connection: HostConnection | None = None
) -> AttemptHandle:
    control = folder / "node-0"
    control.mkdir()
    (control / "journal").write_bytes(journal)
    connection = connection or HostConnection(Host("local"))
    place = Place(0, 1, "none", str(folder), str(control))
    return AttemptHandle((NodeHandle(connection, Processes(connection), place),))
