"""The learning rate, and which sample is trained on when, as pure functions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.config import Config
from trainer.data.order import epoch_order
from trainer.errors import UsageError
from trainer.flags import parse
from trainer.optim import Plan, lr_at, make_plan, part_bounds


def config(*argv: str) -> Config:
    return parse(argv, {})[0]


def rates(*argv: str, samples: int = 100) -> tuple[list[float], Plan]:
    c = config("--global-batch", "10", *argv)
    plan = make_plan(c, samples, 1)
    return [lr_at(step, c, plan) for step in range(plan.total_steps)], plan


def test_cosine_warms_up_and_ends_at_its_minimum() -> None:
    curve, plan = rates("--epochs", "5", "--lr", "1", "--min-lr", "0.1", "--warmup-epochs", "2")
    assert plan.warmup_steps == 20 and plan.total_steps == 50
    assert curve[:20] == pytest.approx([(n + 1) / 20 for n in range(20)])
    assert curve[20] == 1.0 and curve == curve[:20] + sorted(curve[20:], reverse=True)
    assert 0.1 <= curve[-1] < 0.11


def test_multistep() -> None:
    curve, _ = rates(
        *("--epochs", "4", "--schedule", "multistep", "--milestones", "1,3", "--gamma", "0.2"),
        *("--lr", "1", "--warmup-epochs", "0"),
    )
    assert curve == pytest.approx([1.0] * 10 + [0.2] * 20 + [0.04] * 10)


def test_triangular_and_constant() -> None:
    curve, _ = rates("--schedule", "triangular", "--epochs", "4", "--lr", "1")
    assert max(curve) == curve[9] == 1.0 and curve[-1] == pytest.approx(1 / 30)
    curve, _ = rates("--schedule", "constant", "--warmup-epochs", "0", "--lr", "0.3")
    assert set(curve) == {0.3}


def test_scaling_rules() -> None:
    for rule, factor in (("none", 1), ("linear", 4), ("sqrt", 2)):
        c = config("--lr", "0.1", "--lr-scaling", rule, "--batch-size", "256")
        assert make_plan(c, 50_000, 4).peak_lr == pytest.approx(0.1 * factor)


def test_nothing_is_rounded() -> None:
    for argv, world in (
        (["--global-batch", "100"], 3),
        (["--batch-size", "10", "--grad-accum-steps", "3"], 2),
        (["--canonical-shards", "4"], 3),
        (["--global-batch", "200", "--drop-last"], 1),
    ):
        with pytest.raises(UsageError):
            make_plan(config(*argv), 150, world)


@given(size=st.integers(0, 300), world=st.integers(1, 16), each=st.integers(1, 4), cut=st.data())
def test_parts_cover_a_batch_once_however_it_is_cut(
    size: int, world: int, each: int, cut: st.DataObject
) -> None:
    parts = world * each
    bounds = [part_bounds(size, parts, index) for index in range(parts)]
    assert [n for first, last in bounds for n in range(first, last)] == list(range(size))
    lengths = [last - first for first, last in bounds]
    assert max(lengths) - min(lengths) <= 1
    rank = cut.draw(st.integers(0, world - 1))
    ours = bounds[rank * each : (rank + 1) * each]
    assert (ours[0][0], ours[-1][1]) == part_bounds(size, world, rank), "W*k cuts within W's cuts"


@pytest.mark.parametrize("samples", [1, 7, 1797, 10_000, 50_000])
@pytest.mark.parametrize("drop", [False, True])
def test_every_sample_once_an_epoch(samples: int, drop: bool) -> None:
    for world in (*range(1, 9), 16):
        argv = ["--global-batch", str(world * 4), *(["--drop-last"] if drop else [])]
        if drop and samples < world * 4:
            continue
        plan = make_plan(config(*argv), samples, world)
        order = epoch_order(3, 1, samples).tolist()
        seen = []
        for step in range(plan.steps_per_epoch, 2 * plan.steps_per_epoch):
            start, end = plan.batch_of(step)
            for part in range(plan.parts):
                first, last = part_bounds(end - start, plan.parts, part)
                seen += order[start + first : start + last]
        assert len(seen) == len(set(seen))
        assert len(seen) == (samples // (world * 4) * world * 4 if drop else samples)
        assert plan.samples_by(plan.steps_per_epoch) == len(seen)


def test_each_epoch_and_each_seed_has_its_own_order() -> None:
    orders = {(s, e): tuple(epoch_order(s, e, 50).tolist()) for s in range(4) for e in range(4)}
    assert len(set(orders.values())) == 16, "seed 0 epoch 1 must not be seed 1 epoch 0"
    assert orders[1, 2] == tuple(epoch_order(1, 2, 50).tolist())
