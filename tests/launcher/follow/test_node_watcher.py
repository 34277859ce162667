"""What is read from a node's journal, and who keeps dialing; the monitor's tests cover the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes import FakeCluster

from launcher.engines.choose import engine_of
from launcher.engines.node_handle import NodeHandle
from launcher.errors import HostUnreachable
from launcher.follow import node_watcher
from launcher.follow.inbox import Inbox, Lost, PastEvents, ProbeFailed
from launcher.follow.node_watcher import EVENTS, NodeWatcher
from launcher.hosts import Host
from launcher.plan.plan import place_in
from launcher.ssh.host_connection import HostConnection


def test_past_events_are_those_before_the_offset_without_usage(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    rows = ['1.5\t!\t{"kind": "start"}', "2.5\t0\ttext", '3.5\t!\t{"gpus": [], "kind": "usage"}']
    before = "".join(f"{row}\n" for row in [*rows, '4.5\t!\t{"kind": "stopping"}'])
    journal.write_text(before + '5.5\t!\t{"kind": "end"}\n')
    argv = [str(journal), str(len(before)), "\t!\t", "1000"]
    done = HostConnection(Host("local")).script(EVENTS, *argv)
    assert done.stdout.decode().splitlines() == [rows[0], '4.5\t!\t{"kind": "stopping"}']


def watcher_of(host: str, run_dir: str = "/run", offset: int = 0) -> NodeWatcher:
    connection = HostConnection(Host(host))
    place = place_in(run_dir, "20261121-153000", 0, 1)
    node = NodeHandle(connection, engine_of(connection, "docker"), place)
    return NodeWatcher(node, offset, Inbox())


@pytest.mark.parametrize(("most", "times"), [(10_000, [1.0, 2.0, 3.0, 4.0]), (96, [3.0, 4.0])])
def test_of_very_many_past_events_the_newest_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, times: list[float]
) -> None:
    """An event of which the limit leaves only a part is left out: its time would be wrong."""
    row = "170000000%d.0\t!\t" + json.dumps({"kind": "start"}) + "\n"  # 33 bytes
    watcher = watcher_of("local", str(tmp_path), offset=4 * len(row % 0))
    journal = Path(watcher._member.place.journal)
    journal.parent.mkdir(parents=True)
    journal.write_text("".join(row % i for i in (1, 2, 3, 4, 5)))
    monkeypatch.setattr(node_watcher, "LONG_OUTPUT", most)
    [past] = watcher._past_events()
    assert isinstance(past, PastEvents)
    assert [time - 1_700_000_000 for time, _ in past.events] == times


def test_a_search_of_a_long_journal_for_events_may_take_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FakeCluster(tmp_path, monkeypatch, ["gpu0"])
    cluster.hosts["gpu0"].install("head", '#!/bin/sh\nsleep 0.3; exec /usr/bin/head "$@"\n')
    watcher = watcher_of("gpu0", str(tmp_path), offset=1)
    journal = Path(watcher._member.place.journal)
    journal.parent.mkdir(parents=True)
    journal.write_text("1.5\t0\ttext\n")
    monkeypatch.setitem(HostConnection.script.__kwdefaults__, "timeout", 0.1)
    assert [*watcher._past_events()] == [PastEvents(0, [], 1)]


def test_a_host_that_has_just_not_answered_is_dialed_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a probe, while a question to it fails at once."""
    dials = FakeCluster(tmp_path, monkeypatch, ["gpu0"]).silence(monkeypatch, "gpu0")
    monkeypatch.setattr(node_watcher, "BACKOFF", (0.0,))
    watcher = watcher_of("gpu0")
    inbox = watcher._inbox
    with pytest.raises(HostUnreachable):
        watcher._member.connection.connect()
    watcher._probe()
    assert [type(item) for item in inbox.take()] == [ProbeFailed]
    assert dials == ["gpu0"] * 2
    watcher.start()
    lost = (item for _ in range(100) for item in inbox.take())  # 20 s
    assert [type(next(lost)) for _ in range(3)] == [Lost] * 3
    inbox.close()
    assert len(dials) >= 4
