"""What the supervisors are told."""

from __future__ import annotations

import pytest

from launcher.plan.supervisor_spec import HANG_TIMEOUT, hang_timeout_of


@pytest.mark.parametrize(
    ("command", "asked", "timeout"),
    [
        (("-m", "trainer", "--epochs", "3"), None, HANG_TIMEOUT),
        (("-m", "trainer"), 30.0, 30.0),
        (("-m", "trainer"), 0.0, None),
        (("-m", "trainers"), None, None),
        (("train.py", "-m", "trainer"), None, None),
        (("train.py",), 20.0, 20.0),
    ],
)
def test_only_our_trainer_is_watched_for_progress_without_being_asked(
    command: tuple[str, ...], asked: float | None, timeout: float | None
) -> None:
    assert hang_timeout_of(command, asked) == timeout
