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
    made = SimpleNamespace(now=1000.0, bytes=0, cpu=0.0)
    clock = SimpleNamespace(monotonic=lambda: made.now, time=lambda: made.now)
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


def test_progress_is_the_newest_file_of_this_attempt(world: Any, tmp_path: Path) -> None:
    old = tmp_path / "metrics.jsonl"
    old.touch()
    os.utime(old, (900.0, 900.0))
    made = Liveness(str(tmp_path))
    assert made.progress_age() is None, "an earlier attempt wrote it"
    new = tmp_path / "status.json"
    new.touch()
    os.utime(new, (1005.0, 1005.0))
    world.now = 1030.0
    assert made.progress_age() == 25.0
    new.unlink()
    assert made.progress_age() is None, "another process may remove it at any time"
