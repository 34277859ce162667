"""When a run that has failed is restarted: the rule of the supervisors and of the launcher."""

from __future__ import annotations

import pytest

from launcher.supervisor.classify import Restart
from launcher.supervisor.restarts import PastRestart, refusal

SAVED, IDLE = PastRestart("killed", True), PastRestart("killed", False)


def refused(
    *past: PastRestart,
    cause: str = "killed",
    rule: Restart = Restart.ALWAYS,
    saved: bool = False,
    most: int = 9,
) -> str:
    return refusal(cause, rule, saved, past, most)


def test_a_failure_that_would_happen_again_is_refused() -> None:
    assert "`usage` would happen again" in refused(cause="usage", rule=Restart.NEVER)


def test_restarts_are_counted() -> None:
    assert refused(SAVED, most=2) == ""
    assert refused(SAVED, SAVED, most=2) == "2 of 2 restarts are used up"


def test_some_failures_are_restarted_once() -> None:
    past = PastRestart("memory", True)
    assert refused(past, SAVED, cause="memory", rule=Restart.ONCE, saved=True)
    assert refused(past, cause="cuda-oom", rule=Restart.ONCE, saved=True) == ""


@pytest.mark.parametrize("first", [SAVED, IDLE])
def test_three_restarts_in_a_row_that_brought_no_checkpoint_are_enough(first: PastRestart) -> None:
    """Whether the first start had saved one or not: it was no restart."""
    assert refused(first, IDLE) == ""
    assert refused(first, IDLE, IDLE) == "3 restarts in a row brought no new checkpoint"
    assert refused(first, IDLE, IDLE, saved=True) == ""
    assert refused(first, IDLE, SAVED) == ""
    assert refused(first, SAVED, IDLE) == ""
