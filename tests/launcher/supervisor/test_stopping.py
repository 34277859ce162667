"""Which processes get which signals while a node stops."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.supervisor import stopping
from launcher.supervisor.stopping import LAST_OUTPUT, ONLY_SOURCE, StopSequence

TORCHRUN, STANDBY, RANK = 10, 11, 12


class Node:
    """A node that only records signals. Its clock stands still until a test sets `now`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.dumping = 100.0, False
        self.alive: list[int] = [RANK]
        self.failed: list[int] = []
        self.reaped: list[int] = []
        self.sent: list[tuple[int, ...]] = []
        monkeypatch.setattr(stopping, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(stopping, "send", lambda *what: self.sent.append(what))
        monkeypatch.setattr(stopping, "descendants", lambda _: [TORCHRUN, STANDBY, *self.alive])
        processes: list[Any] = [SimpleNamespace(pid=pid) for pid in (TORCHRUN, STANDBY)]
        self.ranks: Any = SimpleNamespace(
            alive=lambda: self.alive,
            failed=lambda: self.failed,
            reaped=lambda: self.reaped,
            complete=True,
        )
        recorder: Any = Recorder(self)
        self.stop = StopSequence(*processes, self.ranks, recorder)

    def signals_at(self, now: float) -> list[tuple[int, ...]]:
        """The signals that are sent at this time."""
        self.now = now
        self.sent.clear()
        self.stop.send_due_signals()
        return [*self.sent]


class Recorder:
    def __init__(self, node: Node) -> None:
        self._node = node

    def ask(self) -> bool:
        return self._node.dumping

    @property
    def is_ready(self) -> bool:
        return not self._node.dumping


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(monkeypatch)


def test_a_run_that_is_not_stopped_gets_no_signal(node: Node) -> None:
    assert node.signals_at(1000.0) == []


def test_torchrun_gets_the_signal_once_and_the_ranks_sigkill_after_the_time_to_save(
    node: Node,
) -> None:
    node.stop.begin(signal.SIGINT, 5.0, failed=False)
    assert node.sent == [(TORCHRUN, signal.SIGINT), (TORCHRUN, signal.SIGCONT)]
    assert node.signals_at(104.9) == []
    assert node.signals_at(105.1) == [(RANK, signal.SIGKILL)]
    assert not node.stop.killed_torchrun


def test_torchrun_stands_still_until_the_ranks_have_dumped_and_then_reports_by_itself(
    node: Node,
) -> None:
    node.dumping, node.failed = True, [1]
    node.stop.begin(signal.SIGTERM, 3.0, failed=True)
    assert node.sent == [(TORCHRUN, signal.SIGSTOP)]
    assert node.signals_at(100.1) == []
    node.dumping = False
    assert node.signals_at(100.2) == [(TORCHRUN, signal.SIGCONT)]


@pytest.mark.parametrize(
    ("reaped", "complete", "wait"),
    [([], True, LAST_OUTPUT), ([1], True, ONLY_SOURCE), ([], False, ONLY_SOURCE)],
)
def test_torchrun_is_killed_if_it_does_not_end_soon_after_its_ranks(
    node: Node, reaped: list[int], complete: bool, wait: float
) -> None:
    node.failed, node.reaped, node.ranks.complete = [1], reaped, complete
    node.stop.begin(signal.SIGTERM, 60.0, failed=True)
    node.alive = []
    assert node.signals_at(101.0) == []
    assert node.signals_at(101.0 + wait) == []
    assert not node.stop.killed_torchrun
    assert node.signals_at(101.1 + wait) == [(TORCHRUN, signal.SIGKILL)]
    assert node.stop.killed_torchrun
