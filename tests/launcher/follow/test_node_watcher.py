"""What is read from a node's journal, and who keeps dialing; the monitor's tests cover the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import FakeCluster

from launcher.engines.choose import engine_of
from launcher.engines.node_handle import NodeHandle
from launcher.errors import HostUnreachable
from launcher.follow import node_watcher
from launcher.follow.inbox import Inbox, Lost, ProbeFailed
from launcher.follow.node_watcher import EVENTS, NodeWatcher
from launcher.hosts import Host
from launcher.plan.plan import place_in
from launcher.ssh.host_connection import HostConnection


def test_past_events_are_those_before_the_offset_without_usage(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    rows = ['1.5\t!\t{"kind": "start"}', "2.5\t0\ttext", '3.5\t!\t{"gpus": [], "kind": "usage"}']
    before = "".join(f"{row}\n" for row in [*rows, '4.5\t!\t{"kind": "stopping"}'])
    journal.write_text(before + '5.5\t!\t{"kind": "end"}\n')
    done = HostConnection(Host("local")).script(EVENTS, str(journal), str(len(before)), "\t!\t")
    assert done.stdout.decode().splitlines() == [rows[0], '4.5\t!\t{"kind": "stopping"}']


def test_a_host_that_has_just_not_answered_is_dialed_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a probe, while a question to it fails at once."""
    dials = FakeCluster(tmp_path, monkeypatch, ["gpu0"]).silence(monkeypatch, "gpu0")
    monkeypatch.setattr(node_watcher, "BACKOFF", (0.0,))
    connection, inbox = HostConnection(Host("gpu0")), Inbox()
    with pytest.raises(HostUnreachable):
        connection.connect()
    place = place_in("/run", "20261121-153000", 0, 1)
    watcher = NodeWatcher(NodeHandle(connection, engine_of(connection, "docker"), place), 0, inbox)
    watcher._probe()
    assert [type(item) for item in inbox.take()] == [ProbeFailed]
    assert dials == ["gpu0"] * 2
    watcher.start()
    lost = (item for _ in range(100) for item in inbox.take())  # 20 s
    assert [type(next(lost)) for _ in range(3)] == [Lost] * 3
    inbox.close()
    assert len(dials) >= 4
