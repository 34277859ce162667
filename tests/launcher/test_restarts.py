"""Which failures are worth another attempt."""

from __future__ import annotations

import pytest

from launcher.record import AttemptRecord
from launcher.restarts import BACKOFF, decide


def attempt(kind: str, progress: bool | None = True) -> AttemptRecord:
    return AttemptRecord(
        attempt=1,
        state="FAILED",
        created="",
        nodes=[],
        world_size=2,
        master_addr="a",
        master_port=1,
        first_failure={"kind": kind},
        progress=progress,
    )


@pytest.mark.parametrize("kind", ["host-lost", "killed", "hung", "collective-timeout"])
def test_what_chance_did_is_tried_again(kind: str) -> None:
    verdict = decide([attempt(kind)], max_restarts=3)
    assert verdict.again
    assert verdict.wait == BACKOFF[0]


@pytest.mark.parametrize("kind", ["usage", "file-missing", "exception", "cuda-oom", "unknown"])
def test_what_would_fail_again_is_not(kind: str) -> None:
    verdict = decide([attempt(kind)], max_restarts=3)
    assert not verdict.again
    assert kind in verdict.why


def test_restarts_are_counted_and_wait_longer_each_time() -> None:
    assert decide([attempt("killed")] * 2, max_restarts=3).wait == BACKOFF[1]
    used_up = decide([attempt("killed")] * 4, max_restarts=3)
    assert not used_up.again
    assert "3 of 3" in used_up.why


def test_three_attempts_without_progress_are_enough() -> None:
    stuck = [attempt("killed"), *[attempt("killed", progress=False)] * 3]
    verdict = decide(stuck, max_restarts=10)
    assert not verdict.again
    assert "3 attempts" in verdict.why
    assert decide([*stuck, attempt("killed")], max_restarts=10).again
