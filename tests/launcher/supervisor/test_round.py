"""One start of torchrun: how soon the supervisor looks again, and which rank it names."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest

from launcher.supervisor.events import Phase
from launcher.supervisor.ranks import Rank, Ranks
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


def test_a_rank_that_fails_just_after_the_look_at_it_is_named_not_one_that_torchrun_then_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy machine, torchrun may reap one rank and end the next between the looks at the two."""
    gone: list[Rank] = []

    def look(rank: Rank, now: float) -> None:
        if rank.rank == 1:
            rank.exited, rank.exit_code = now, -signal.SIGTERM
            gone.append(rank)
        elif gone:
            rank.exited = now  # its exit code went to torchrun

    monkeypatch.setattr(Rank, "look", look)
    made, stopped_for = Round.__new__(Round), list[int]()
    vars(made).update(
        reason=None,
        early=None,
        ranks=Ranks(2),
        spec=SimpleNamespace(peer_timeout=5.0),
        logs=SimpleNamespace(drain=lambda _: None),
        liveness=SimpleNamespace(look=lambda _: None),
        record_exit=lambda _: None,
        why=lambda kind, message, rank: rank.rank,
        stop=stopped_for.append,
    )
    made.ranks.by_local_rank.update({number: Rank(1, number, number) for number in (0, 1)})
    made.check_ranks()
    assert stopped_for == [0]
