"""When a run that has failed is restarted: the rule of the supervisors and of the launcher."""

from __future__ import annotations

import pytest

from launcher.supervisor.restart_rule import PastRestart, refusal

SAVED, IDLE = PastRestart("killed", True), PastRestart("killed", False)


def refused(
    *past: PastRestart,
    cause: str = "killed",
    saved: bool = False,
    most: int = 9,
    other_hosts: bool = False,
) -> str:
    return refusal(cause, saved, past, most, other_hosts=other_hosts)


@pytest.mark.parametrize("cause", ["usage", "a kind of another version"])
def test_a_failure_that_would_happen_again_is_refused(cause: str) -> None:
    assert refused(cause=cause) == f"a failure of kind `{cause}` would happen again"


def test_a_failure_that_would_happen_again_on_its_host_is_restarted_on_another() -> None:
    assert "would happen again on this host" in refused(cause="gpu-failed")
    assert refused(cause="gpu-failed", other_hosts=True) == ""


def test_restarts_are_counted() -> None:
    assert refused(SAVED, most=2) == ""
    assert refused(SAVED, SAVED, most=2) == "all restarts are used up (2 of 2)"


def test_some_failures_are_restarted_once() -> None:
    assert refused(PastRestart("memory", True), SAVED, cause="memory", saved=True)
    assert refused(PastRestart("memory", True), cause="cuda-oom", saved=True) == ""


@pytest.mark.parametrize("first", [SAVED, IDLE])
def test_three_restarts_in_a_row_that_brought_no_checkpoint_are_enough(first: PastRestart) -> None:
    """Whether the first start had saved one or not: it was no restart."""
    assert refused(first, IDLE) == ""
    assert refused(first, IDLE, IDLE) == "3 restarts in a row produced no new checkpoint"
    assert refused(first, IDLE, IDLE, saved=True) == ""
    assert refused(first, IDLE, SAVED) == ""
    assert refused(first, SAVED, IDLE) == ""
