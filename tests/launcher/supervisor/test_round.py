"""One start of torchrun: how soon the loop of the supervisor looks again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from launcher.supervisor.events import Phase
from launcher.supervisor.round import POLL, SOON, Round


@pytest.mark.parametrize(
    ("phase", "complete", "grows", "seconds"),
    [
        (Phase.RUNNING, False, False, SOON),
        (Phase.RUNNING, True, False, POLL),
        (Phase.STOPPED, False, False, POLL),
        (Phase.RUNNING, True, True, SOON),
    ],
)
def test_the_supervisor_polls_often_only_while_ranks_start_or_print(
    phase: Phase, complete: bool, grows: bool, seconds: float
) -> None:
    made = Round.__new__(Round)
    vars(made).update(
        phase=phase,
        ranks=SimpleNamespace(complete=complete),
        logs=SimpleNamespace(copy_new=lambda: int(grows)),
        liveness=SimpleNamespace(reset=lambda **_: None),
    )
    made.copy_output()
    assert made.interval == seconds
