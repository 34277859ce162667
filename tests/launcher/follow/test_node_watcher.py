"""What is read from a node's journal; the monitor's tests cover the rest."""

from __future__ import annotations

from pathlib import Path

from launcher.follow.node_watcher import EVENTS
from launcher.hosts import Host
from launcher.ssh.host_connection import HostConnection


def test_past_events_are_those_before_the_offset_without_usage(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    rows = ['1.5\t!\t{"kind": "start"}', "2.5\t0\ttext", '3.5\t!\t{"gpus": [], "kind": "usage"}']
    before = "".join(f"{row}\n" for row in [*rows, '4.5\t!\t{"kind": "stopping"}'])
    journal.write_text(before + '5.5\t!\t{"kind": "end"}\n')
    done = HostConnection(Host("local")).script(EVENTS, str(journal), str(len(before)), "\t!\t")
    assert done.stdout.decode().splitlines() == [rows[0], '4.5\t!\t{"kind": "stopping"}']
