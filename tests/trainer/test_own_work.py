"""Which ranks are slow, although all ranks of a step take the same time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from trainer_ranks import batches, make, on_ranks

from trainer import train
from trainer.data import Batch
from trainer.distributed import Ranks
from trainer.slow_ranks import SlowRanks

NAP = 0.3  # seconds that rank 1 takes longer for each batch


def own_work(ranks: Ranks, *flags: str) -> list[float]:
    """Return the seconds of own work of all ranks, of which rank 1 loads its data slowly."""
    t = make(ranks, *flags)

    def slowly(source: Iterator[Batch]) -> Iterator[Batch]:
        for batch in source:
            time.sleep(NAP if ranks.rank else 0)
            yield batch

    source = slowly(batches(t))
    for _ in range(6):
        if t.step == 2:  # the first steps also warm up
            t.poll.work.begin()
            t.poll.work.take()
        train.train_step(t, source)
    t.poll.work.begin()  # the last step has ended
    return ranks.gather(t.poll.work.take())


@pytest.mark.parametrize("flags", [(), ("--canonical-shards", "2"), ("--grad-accum-steps", "2")])
def test_waiting_for_a_slow_rank_does_not_count_as_own_work(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    fast, slow = on_ranks(tmp_path / "r", 2, own_work, *flags)[0]
    naps = 4 * NAP * (2 if "--grad-accum-steps" in flags else 1)
    assert slow > naps and slow - fast > naps / 2


def watched(paces: list[list[float]], seconds: float = 1.0) -> list[tuple[bool, dict[int, float]]]:
    """Return what changed, and who is slow, after each poll. paces: seconds per image of the ranks."""
    now = [0.0]
    slow = SlowRanks(len(paces[0]), clock=lambda: now[0])
    told = []
    for pace in paces:
        now[0] += seconds
        told.append((slow.add([10 * each for each in pace], [10.0] * len(pace)), slow.ratios))
    return told


def test_a_rank_is_slow_once_it_has_been_for_45_seconds() -> None:
    told = watched([[1.0, 1.0, 1.0]] * 5 + [[1.0, 2.0, 1.1]] * 60)
    first = next(at for at, (changed, _) in enumerate(told) if changed)
    assert 45 <= first + 1 - 5 <= 50  # seconds after it became slow
    assert told[first][1] == {1: 1.82} and told[-1][1] == {1: 1.82}
    assert sum(changed for changed, _ in told) == 1


def test_a_rank_that_has_recovered_is_not_slow() -> None:
    told = watched([[1.0, 2.0, 1.0]] * 60 + [[1.0, 1.0, 1.0]] * 5)
    assert told[59][1] == {1: 2.0} and told[-1] == (True, {})


@pytest.mark.parametrize(
    "paces",
    [
        [[1.0, 1.14, 1.0]] * 200,  # close to the others
        ([[1.0, 9.0, 1.0]] + [[1.0, 1.0, 1.0]] * 11) * 20,  # bursts, as of checkpoints
        [[1.0, 1.0, 9.0]] * 40 + [[1.0, 9.0, 1.0]] * 40,  # neither for long enough
        [[0.0, 0.0, 0.0]] * 100,  # nothing is measured
    ],
)
def test_healthy_ranks_are_not_slow(paces: list[list[float]]) -> None:
    assert not any(ratios for _, ratios in watched(paces))


def test_steps_may_be_longer_than_the_window() -> None:
    told = watched([[1.0, 2.0, 1.0]] * 2, seconds=50.0)
    assert told[0][1] == {1: 2.0}


def test_shares_of_different_sizes_are_compared_per_image() -> None:
    now = [0.0]
    slow = SlowRanks(2, clock=lambda: now[0])
    for _ in range(100):
        now[0] += 1.0
        slow.add([2.0, 1.0], [20.0, 10.0])
    assert slow.ratios == {}
