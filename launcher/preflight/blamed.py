"""Hosts blamed for run failures, kept until `ddpctl check --clear HOST`, each in a file of its own."""

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from ..own_folders import make_folder, read_record, state_error, state_home, write_atomically
from ..ssh.host_connection import HostConnection
from ..text import one_line, rfc3339
from .findings import Finding, warning


def remember_blame(run_id: str, hosts: Mapping[str, str]) -> None:
    """Record the hosts that a run avoids from now on. hosts: the reason for each, by host name."""
    now = rfc3339(time.time())
    for host, why in hosts.items():
        make_folder(_file(host).parent)
        write_atomically(_file(host), json.dumps([run_id, now, why]) + "\n")


def blame_of(connections: Sequence[HostConnection]) -> list[Finding]:
    """Return a warning for each given host that has been blamed for a failure."""
    findings = []
    for host in dict.fromkeys(connection.name for connection in connections):
        with contextlib.suppress(OSError, ValueError, TypeError):  # most hosts have no file
            run, at, why = (one_line(str(word)) for word in json.loads(read_record(_file(host))))
            remedy = f"repair it, then run `ddpctl check --clear {host}`"
            blame = warning(f"run {run} has avoided it since {at}: {why}", remedy)
            findings.append(blame.at(host, "runs"))
    return findings


def clear_blame(host: str) -> bool:
    """Forget that a host was blamed. Return False if it was not."""
    try:
        _file(host).unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise state_error(error, "removed", _file(host)) from None
    return True


def _file(host: str) -> Path:
    return state_home() / "blamed" / f"{quote(host, safe='')}.json"
