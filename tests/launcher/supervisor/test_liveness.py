"""Whether ranks make progress, by what the kernel counts and what the trainer writes."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.supervisor import ranks
from launcher.supervisor.ranks import BUSY_FACTOR, IDLE_IO, Liveness, Rank

RANK = Rank(1, 0, 0)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The clock, and what the kernel has counted for the rank."""
    made = SimpleNamespace(now=1000.0, ahead=0.0, bytes=0, cpu=0.0)
    clock = SimpleNamespace(monotonic=lambda: made.now, time=lambda: made.now + made.ahead)
    monkeypatch.setattr(ranks, "time", clock)
    monkeypatch.setattr(ranks, "usage", lambda pid: (made.bytes, made.cpu))
    return made


@pytest.mark.parametrize(
    ("io", "cores", "stuck"),
    [
        (0, 0.0, 10.0),
        (IDLE_IO, 0.0, 10.0),
        (0, 1.0, 1.0 + 9.0 / BUSY_FACTOR),  # from the second look on; it may wait in NCCL
        (2 * IDLE_IO, 0.0, 0.0),  # it reads, or writes a checkpoint
    ],
)
def test_a_rank_is_stuck_while_it_does_nothing_visible(
    world: Any, io: int, cores: float, stuck: float
) -> None:
    made = Liveness("/nowhere")
    made.look([RANK])
    for _ in range(11):
        made.look([RANK])
        world.now, world.bytes, world.cpu = world.now + 1, world.bytes + io, world.cpu + cores
    assert made.stuck == pytest.approx(stuck, abs=1e-6)
    made.reset(output=True)
    assert (made.stuck, made.log_age(), made.begun) == (0.0, 0.0, True)


def report(folder: Path, at: float, name: str = "metrics.jsonl") -> Path:
    """Write a file as the trainer does, at the time `at`."""
    path = folder / name
    path.touch()
    os.utime(path, (at, at))
    return path


def test_progress_is_the_newest_file_of_this_attempt(world: Any, tmp_path: Path) -> None:
    report(tmp_path, 900.0)
    made = Liveness(str(tmp_path))
    assert made.progress_age() is None, "an earlier attempt wrote it"
    world.now = 1005.0
    new = report(tmp_path, 1005.0, "status.json")
    assert made.progress_age() == 0.0
    world.now = 1030.0
    assert made.progress_age() == 25.0
    new.unlink()
    assert made.progress_age() == 0.0, "another process may remove it at any time"


@pytest.mark.parametrize("seconds", [3600.0, -100.0])
def test_a_clock_that_is_set_does_not_make_a_run_hang(
    world: Any, tmp_path: Path, seconds: float
) -> None:
    """Nor does a machine that slept: afterward, its clock is ahead too."""
    made = Liveness(str(tmp_path))
    report(tmp_path, 1001.0)
    report(tmp_path, 1001.0, "status.json")
    assert made.progress_age() == 0.0
    world.ahead = seconds
    world.now = 1030.0
    assert made.progress_age() == 30.0
    report(tmp_path, world.now + seconds)
    assert made.progress_age() == 0.0


def test_a_container_that_was_paused_does_not_hang(world: Any, tmp_path: Path) -> None:
    made = Liveness(str(tmp_path))
    report(tmp_path, 1001.0)
    made.progress_age()
    for world.now in (1001.0, 1002.0, 9002.0):
        made.look([RANK])
    assert (made.log_age(), made.progress_age(), made.stuck) == (2.0, 2.0, 2.0)
