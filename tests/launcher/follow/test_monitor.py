"""Following a node whose journal is already known: its earlier events are read first."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builders import attempt_record, run_record
from local_attempt import local_attempt

from launcher.engines.status import ContainerState, NodeStatus, warn_once
from launcher.errors import HostUnreachable
from launcher.follow import followed_node, inbox
from launcher.follow import monitor as module
from launcher.follow.attempt_end import explain
from launcher.follow.followed_node import Contact, FollowedNode
from launcher.follow.inbox import Exited, NewEntries, Reached
from launcher.follow.monitor import Monitor, NodeDone, Restarted, Tick
from launcher.follow.node_watcher import EVENTS
from launcher.hosts import Host
from launcher.logs.journal_reader import JournalReader
from launcher.logs.store import Mark
from launcher.outcomes import RunState
from launcher.runs.run_folder import RunFolder
from launcher.ssh.host_connection import HostConnection
from launcher.ssh.stream import Completed
from launcher.supervisor.events import (
    End,
    EndState,
    RankExit,
    Reason,
    RestartInPlace,
    Stopping,
)
from launcher.terminal.console import Console

JOURNAL = b"""\
1.5\t!\t{"kind": "stopping", "reason": {"kind": "cancelled", "message": "", "node_rank": 0}}
1.6\t0\tlast words
1.7\t!\t{"kind": "end", "state": "cancelled", "exit_code": 1}
"""


class Busy(HostConnection):
    """This machine, where the events are read only once the journal's size is known."""

    def __init__(self) -> None:
        super().__init__(Host("local"))
        self.sized = threading.Event()

    def run(self, argv: Sequence[str], **how: Any) -> Completed:
        if EVENTS in argv:
            self.sized.wait(10)
        done = super().run(argv, **how)
        if EVENTS not in argv:
            self.sized.set()
        return done


def followed(folder: Path, journal: bytes, known: int) -> list[Any]:
    """What the monitor yields for an ended node, `known` bytes of whose journal have already been shown.

    Without NewEntries and Ticks, and the node in place of a NodeDone.
    """
    attempt = local_attempt(folder, journal, Busy())
    monitor = Monitor(attempt, {0: Mark(1.7, 1, known, 0)} if known else {})
    rest = [each for each in monitor.observations() if not isinstance(each, NewEntries | Tick)]
    return [each.node if isinstance(each, NodeDone) else each for each in rest]


def test_a_run_that_ended_before_anyone_attached_is_judged_by_its_events(tmp_path: Path) -> None:
    [node] = followed(tmp_path, JOURNAL, len(JOURNAL))
    assert isinstance(node, FollowedNode) and node.exited
    assert node.end is not None and node.end.state == "cancelled"
    assert [event.kind for _, event in node.events] == ["stopping", "end"]


def test_events_that_cannot_be_read_are_skipped_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    warn_once.cache_clear()
    garbage = b'1.0\t!\t{"kind": "end"}\n1.1\t!\t\xff\n1.2\t!\t{"kind": "of a newer version"}\n'
    [node] = followed(tmp_path, garbage + JOURNAL, 0)
    assert caplog.messages == ["local: skipping unreadable events in its journal"]
    assert [event.kind for _, event in node.events] == ["stopping", "end"]


END = {"events": [(1.7, End(EndState.FAILED, 1))], "end_heard_at": 100.0}
EXITED = {"exited": True, "journal_size": 10, "heard_at": 100.0}


@pytest.mark.parametrize(
    ("known", "done"),
    [
        ({}, False),
        ({"contact": Contact(HostUnreachable("no answer"))}, False),
        ({"contact": Contact(HostUnreachable("no answer"), gone=True)}, True),
        ({**EXITED, **END}, True),
        ({**EXITED, "offset": 10}, True),
    ],
)
def test_a_node_is_done_once_all_of_it_was_read_or_a_probe_of_its_host_failed(
    known: dict[str, Any], done: bool
) -> None:
    node = FollowedNode(0, "gpu1", **known)
    assert node.nothing_more_comes(100.0, drained=False) is done
    assert node.nothing_more_comes(1000.0, drained=True) is done


@pytest.mark.parametrize(("known", "silence"), [(END, 1.5), ({**EXITED, "offset": 9}, 15.0)])
def test_a_node_that_has_ended_is_done_after_a_silence_in_which_no_line_waits(
    known: dict[str, Any], silence: float
) -> None:
    node = FollowedNode(0, "gpu1", **known)
    assert node.nothing_more_comes(100.1 + silence, drained=True)
    assert not node.nothing_more_comes(99.9 + silence, drained=True)
    assert not node.nothing_more_comes(100.1 + silence, drained=False)


def test_of_too_many_events_the_oldest_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_node, "MOST_EVENTS", 1000)
    flood = b'1.0\t!\t{"kind": "ranks", "pids": {"0": 7}}\n' * 500
    [node] = followed(tmp_path, flood + JOURNAL, 0)
    assert 10 < len(node.events) < 50
    assert [event.kind for _, event in node.events[-2:]] == ["stopping", "end"]


def test_no_failure_text_is_made_from_events_of_which_some_were_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node 0 has printed long tracebacks in each round, and node 1 has only followed it."""
    monkeypatch.setattr(followed_node, "MOST_EVENTS", 15_000)
    attempt = local_attempt(tmp_path, b"", Busy())
    nodes = {rank: FollowedNode(rank, f"gpu{rank}", exit_code=0) for rank in (0, 1)}
    for number in range(1, 21):
        cause = Reason("rank-failed", "raised", 0, "gpu0", rank=0, exit_code=1)
        exit = RankExit(0, 0, 1, last_lines=("x" * 1000, f"ValueError: {number}"))
        for node, events in (nodes[0], [exit]), (nodes[1], []):
            for event in (*events, Stopping(cause)):
                node.keep_event(float(number), event)
            node.keep_event(number + 0.5, RestartInPlace(number, 9, True, cause))
    assert len(nodes[0].events) < len(nodes[1].events) == 40
    folder, record = RunFolder(tmp_path / "r"), run_record(attempt_record(state=RunState.SUCCEEDED))
    explain(attempt, folder, record, nodes, Console())
    texts = {path.name: path.read_text() for path in folder.logs.glob("failure-*")}
    assert texts and all("ValueError: " in text for text in texts.values()), texts


def test_a_restart_in_place_is_that_of_the_node_that_reports_it(tmp_path: Path) -> None:
    cause = '{"kind": "killed", "message": "", "node_rank": 0}'
    restart = f'{{"kind": "restart", "number": 1, "left": 0, "saved": false, "cause": {cause}}}'
    monitor = Monitor(local_attempt(tmp_path, b""), {})
    monitor._watchers.clear()
    monitor.nodes[1] = FollowedNode(1, "gpu2")
    monitor._inbox.put(
        NewEntries(1, JournalReader().feed(b"1.5\t!\t" + restart.encode() + b"\n"), 0)
    )
    with closing(monitor.observations()) as observations:
        report = next(each for each in observations if isinstance(each, Restarted))
    assert (report.node.node_rank, report.time) == (1, 1.5)


def test_a_node_has_not_ended_while_its_last_words_wait_in_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launching machine is slow: it takes one report a second, and others come first."""
    monitor = Monitor(local_attempt(tmp_path, JOURNAL, Busy()), {})
    monitor._watchers.clear()
    monitor.nodes[1] = FollowedNode(1, "gpu2")
    monitor._inbox.put(
        Exited(0, NodeStatus(1, 0, "local", "", ContainerState.EXITED, 1), len(JOURNAL))
    )
    for _ in range(40):
        monitor._inbox.put(Reached(1))
    monitor._inbox.put(NewEntries(0, JournalReader().feed(JOURNAL), len(JOURNAL)))
    clock = itertools.count(0.0, inbox.POLL / 1.5)
    slow = SimpleNamespace(monotonic=lambda: next(clock))
    for each in (module, followed_node, inbox):
        monkeypatch.setattr(each, "time", slow)
    with closing(monitor.observations()) as observations:
        node = next(each.node for each in observations if isinstance(each, NodeDone))
    assert node.node_rank == 0 and node.end is not None
