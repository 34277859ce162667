"""`--spawn N`: the ranks that it starts, and how they end. Processes and clock are replaced."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from trainer import parent
from trainer.errors import UsageError
from trainer.parse_flags import parse
from trainer.tools import spawn as spawning


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Process:
    """A rank that exits with `code` after so many seconds, or when it gets a signal that it obeys."""

    def __init__(self, clock: Clock, code: int = 0, after: float = 0.0, obeys: str = "") -> None:
        self.clock, self.code, self.obeys = clock, code, obeys
        self.ends_at = clock.now + after
        self.signals: list[tuple[str, float]] = []

    def poll(self) -> int | None:
        return self.returncode

    @property
    def returncode(self) -> int | None:
        return self.code if self.clock.now >= self.ends_at else None

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            name = signal.Signals(number).name
            self.signals.append((name, round(self.clock.now - 100.0)))
            if name == self.obeys:
                self.code, self.ends_at = -number, self.clock.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(spawning, "time", clock)
    return clock


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> list[Any]:
    """The commands and environments of the ranks, which succeed at once; then the signal handlers."""
    ranks: list[Any] = []

    def popen(command: list[str], env: dict[str, str]) -> Process:
        ranks.append((command, env))
        return Process(clock)

    monkeypatch.setattr(spawning.subprocess, "Popen", popen)
    monkeypatch.setattr(spawning.signal, "signal", lambda number, handler: None)
    for name in ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return ranks


def spawn(flags: list[str], nodes: dict[str, str]) -> int:
    return spawning.spawn(parse(["--device", "cpu", *flags], {})[0], flags, nodes)


NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")


def test_ranks_of_one_machine_have_torchruns_variables_and_a_file_as_store(
    started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert spawn(["--spawn", "3"], {}) == 0
    assert [command for command, _ in started] == [
        [sys.executable, "-m", "trainer", "--spawn", "3"]
    ] * 3
    ranks = [tuple(env[name] for name in NAMES) for _, env in started]
    assert ranks == [
        ("0", "0", "3", "3", "0", "1"), ("1", "1", "3", "3", "0", "1"), ("2", "2", "3", "3", "0", "1")
    ]  # fmt: skip
    for _, env in started:
        assert env["TRAINER_SPAWNED"] == str(os.getpid())
        assert env["TRAINER_STORE"].endswith("/store") and env["GLOO_SOCKET_IFNAME"] == "lo"
        assert env["OMP_NUM_THREADS"] == "2"
    assert len({env["TRAINER_STORE"] for _, env in started}) == 1


def test_ranks_of_a_second_node_follow_those_of_the_first(
    started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert spawn(["--spawn", "2"], {"NODE_RANK": "1", "NNODES": "3"}) == 0
    ranks = [tuple(env[name] for name in NAMES) for _, env in started]
    assert ranks == [("2", "0", "6", "2", "1", "3"), ("3", "1", "6", "2", "1", "3")]
    assert all("TRAINER_STORE" not in env for _, env in started)
    assert all("GLOO_SOCKET_IFNAME" not in env for _, env in started)
    assert all(env["OMP_NUM_THREADS"] == "1" for _, env in started)


def test_without_a_number_a_node_without_gpus_has_one_rank(started: list[Any]) -> None:
    assert spawn([], {"NODE_RANK": "1", "NNODES": "2"}) == 0
    assert [(env["RANK"], env["WORLD_SIZE"]) for _, env in started] == [("1", "2")]


@pytest.mark.parametrize(("gpus", "ranks"), [(0, 1), (1, 1), (3, 3)])
def test_without_a_number_a_node_has_one_rank_for_each_gpu(
    started: list[Any], monkeypatch: pytest.MonkeyPatch, gpus: int, ranks: int
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpus > 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    assert spawn(["--device", "auto"], {"NODE_RANK": "0", "NNODES": "2"}) == 0
    assert [env["LOCAL_WORLD_SIZE"] for _, env in started] == [str(ranks)] * ranks


def test_numbers_of_nodes_that_are_none_are_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"--rank and --world-size: .*'two'"):
        spawn(["--spawn", "2"], {"NODE_RANK": "0", "NNODES": "two"})


@pytest.mark.parametrize(
    ("codes", "code"), [((0, 0), 0), ((0, 3), 3), ((75, 75), 75), ((0, -9), 137), ((-15, 0), 143)]
)
def test_the_first_code_that_is_not_0_is_passed_on(
    clock: Clock, codes: tuple[int, ...], code: int
) -> None:
    assert spawning._wait([Process(clock, each) for each in codes]) == code  # type: ignore[misc]


@pytest.mark.parametrize(
    ("after", "obeys", "signals"),
    [
        (4.0, "", []),  # ends on its own
        (math.inf, "SIGTERM", [("SIGTERM", 6)]),
        (math.inf, "SIGKILL", [("SIGTERM", 6), ("SIGKILL", 31)]),
    ],
)
def test_when_one_rank_fails_the_others_get_five_seconds_and_then_signals(
    clock: Clock, after: float, obeys: str, signals: list[Any]
) -> None:
    others = [Process(clock, 4, 1.0), Process(clock, 0, after, obeys)]
    assert spawning._wait(others) == 4  # type: ignore[arg-type]
    assert others[1].signals == signals and others[0].signals == []


def test_signals_are_passed_on_to_every_rank(
    started: list[Any], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks: list[Process] = []
    handlers: dict[int, Callable[[int, None], None]] = {}

    def popen(command: list[str], env: dict[str, str]) -> Process:
        ranks.append(Process(clock, 75, math.inf, "SIGINT"))
        return ranks[-1]

    def sleep(seconds: float) -> None:
        clock.now += seconds
        handlers[signal.SIGINT](signal.SIGINT, None)

    monkeypatch.setattr(spawning.subprocess, "Popen", popen)
    monkeypatch.setattr(spawning.signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(clock, "sleep", sleep)
    assert spawn(["--spawn", "2"], {}) == 130
    assert set(handlers) == {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1}
    assert [rank.signals for rank in ranks] == [[("SIGINT", 0)], [("SIGINT", 0)]]


def test_the_kernel_ends_a_rank_with_the_process_that_started_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[int, int]] = []
    codes: list[int] = []
    libc = SimpleNamespace(prctl=lambda *given: calls.append(given))
    monkeypatch.setattr(parent.ctypes, "CDLL", lambda name: libc)
    monkeypatch.setattr(parent.os, "_exit", codes.append)
    parent.die_with_parent(os.getppid())
    assert (calls, codes) == ([(1, signal.SIGKILL)], [])  # 1 is PR_SET_PDEATHSIG
    parent.die_with_parent(os.getppid() + 1)  # it has ended already
    assert codes == [1]
