"""What each step trains on and at which rate, as pure functions."""

from __future__ import annotations

import math
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.config import Config
from trainer.data.order import epoch_order
from trainer.errors import UsageError
from trainer.parse_flags import parse
from trainer.plan import Plan, lr_at, make_plan, part_bounds


def config(*argv: str) -> Config:
    return parse(argv, {})[0]


def rates(*argv: str, samples: int = 100) -> tuple[list[float], Plan]:
    c = config("--global-batch", "10", *argv)
    plan = make_plan(c, samples, 1)
    return [lr_at(step, c, plan) for step in range(plan.total_steps)], plan


def test_cosine_warms_up_and_ends_at_its_minimum() -> None:
    curve, plan = rates("--epochs", "5", "--lr", "1", "--min-lr", "0.1", "--warmup-epochs", "2")
    assert plan.warmup_steps == 20 and plan.total_steps == 50
    rest = [0.1 + 0.9 * (1 + math.cos(math.pi * n / 30)) / 2 for n in range(30)]
    assert curve == pytest.approx([(n + 1) / 20 for n in range(20)] + rest)


def test_multistep() -> None:
    curve, _ = rates(
        *("--epochs", "4", "--schedule", "multistep", "--milestones", "1,3", "--gamma", "0.2"),
        *("--lr", "1", "--warmup-epochs", "0"),
    )
    assert curve == pytest.approx([1.0] * 10 + [0.2] * 20 + [0.04] * 10)


def test_triangular_and_constant() -> None:
    curve, _ = rates("--schedule", "triangular", "--epochs", "4", "--lr", "1")
    assert curve == pytest.approx(
        [(n + 1) / 10 for n in range(10)] + [1 - n / 30 for n in range(30)]
    )
    curve, _ = rates("--schedule", "constant", "--warmup-epochs", "0", "--lr", "0.3")
    assert set(curve) == {0.3}
    curve, _ = rates("--schedule", "triangular", "--epochs", "1", "--lr", "1", "--min-lr", "0.5",
                     "--warmup-epochs", "0")  # fmt: skip
    assert curve == pytest.approx([0.5 + 0.5 * (1 - n / 10) for n in range(10)])


def test_a_run_shorter_than_its_warm_up_warms_up_for_half_of_it() -> None:
    curve, plan = rates(
        "--epochs", "2", "--warmup-epochs", "5", "--schedule", "triangular", "--lr", "1"
    )
    assert plan.warmup_steps == 10
    assert curve == pytest.approx(
        [(n + 1) / 10 for n in range(10)] + [1 - n / 10 for n in range(10)]
    )
    assert rates("--max-steps", "1", "--lr", "1")[0] == [1.0]


def test_scaling_rules() -> None:
    for rule, base, factor in (
        ("none", 256, 1),
        ("linear", 256, 4),
        ("sqrt", 256, 2),
        ("linear", 128, 8),
    ):
        c = config("--lr", "0.1", "--lr-scaling", rule, "--batch-size", "256",
                   "--lr-base-size", str(base))  # fmt: skip
        assert make_plan(c, 50_000, 4).peak_lr == pytest.approx(0.1 * factor)


def test_sizes_of_a_run() -> None:
    plan = make_plan(config("--batch-size", "8", "--epochs", "3"), 100, 4)
    assert (plan.global_batch, plan.parts, plan.steps_per_epoch, plan.total_steps) == (32, 4, 4, 12)
    plan = make_plan(config("--batch-size", "8", "--drop-last", "--epochs", "3"), 100, 4)
    assert (plan.steps_per_epoch, plan.total_steps, plan.epochs) == (3, 9, 3)
    plan = make_plan(config("--global-batch", "30", "--max-steps", "9"), 100, 2)
    assert (plan.steps_per_epoch, plan.total_steps, plan.epochs) == (4, 9, 3)
    assert make_plan(config(), 1000, 2).global_batch == 256  # 128 images per rank
    plan = make_plan(config("--grad-accum-steps", "3"), 1000, 2)
    assert plan.parts == 6 and [list(plan.parts_of(rank)) for rank in (0, 1)] == [
        [0, 1, 2],
        [3, 4, 5],
    ]
    assert make_plan(config("--canonical-shards", "8"), 1000, 2).parts == 8


@pytest.mark.parametrize(
    ("argv", "world", "said"),
    [
        (
            ["--canonical-shards", "4"],
            3,
            "--canonical-shards 4 is not divisible by 3, the number of ranks",
        ),
        (
            ["--canonical-shards", "4", "--global-batch", "10"],
            2,
            "is not divisible into 4 canonical",
        ),
        (["--global-batch", "200", "--drop-last"], 1, "but there are only 150 images"),
        (["--global-batch", "5", "--grad-accum-steps", "3"], 2, "too small for 6 micro-batches"),
    ],
)
def test_impossible_flags_are_a_usage_error(argv: list[str], world: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make_plan(config(*argv), 150, world)
    assert make_plan(config("--global-batch", "6", "--grad-accum-steps", "3"), 150, 2).parts == 6
    assert make_plan(config("--global-batch", "150", "--drop-last"), 150, 1).steps_per_epoch == 1


@pytest.mark.parametrize(
    ("batch", "world", "text"),
    [
        (512, 4, "512 = 4 x 128"),
        (512, 3, "512 = 171+171+170"),
        (100, 8, "100 = 13+12+13+12+13+12+13+12"),
        (600, 11, "600 = 6 x 55 + 5 x 54"),
        (7, 1, "7 = 1 x 7"),
    ],
)  # fmt: skip
def test_a_plan_says_how_many_images_each_rank_computes(batch: int, world: int, text: str) -> None:
    assert str(make_plan(config("--global-batch", str(batch)), 10_000, world)) == text


def former(*argv: str, world: int) -> dict[str, object]:
    """What a checkpoint knows of the run that wrote it."""
    c = config(*argv)
    return {"config": asdict(c), "plan": asdict(make_plan(c, 1000, world))}


def test_with_other_ranks_a_run_keeps_its_batch_and_its_micro_batches() -> None:
    def sizes(*argv: str, world: int, before: dict[str, object]) -> tuple[int, int, str]:
        plan = make_plan(config(*argv), 1000, world, before)
        return plan.global_batch, plan.parts, str(plan).partition(" = ")[2]

    four = former(world=4)
    assert sizes(world=3, before=four) == (512, 4, "256+128+128")
    assert sizes(world=4, before=four) == (512, 4, "4 x 128")
    assert sizes(world=2, before=four) == (512, 4, "2 x 256")
    assert sizes(world=6, before=four) == (512, 6, "86+85+85+86+85+85")  # one each, at least
    assert sizes("--elastic", "even", world=3, before=four) == (512, 3, "171+171+170")
    assert sizes("--batch-size", "100", world=3, before=four) == (300, 3, "3 x 100")
    assert sizes("--global-batch", "99", world=3, before=four) == (99, 3, "3 x 33")
    assert sizes("--grad-accum-steps", "2", world=3, before=four) == (384, 6, "3 x 128")
    accumulated = former("--grad-accum-steps", "2", "--batch-size", "10", world=4)
    flags = ("--grad-accum-steps", "2", "--batch-size", "10")
    assert sizes(*flags, world=3, before=accumulated) == (40, 8, "15+15+10")
    shards = former("--canonical-shards", "12", "--global-batch", "24", world=4)
    flags = ("--canonical-shards", "12", "--global-batch", "24")
    assert sizes(*flags, world=3, before=shards) == (24, 12, "3 x 8")


def test_with_sync_batch_norm_all_ranks_have_the_same_number_of_micro_batches() -> None:
    """The ranks meet in every forward pass, so a rank with one more would wait forever."""
    flags = ("--bn", "sync", "--grad-accum-steps", "2")
    for world in (1, 2, 3, 6):
        plan = make_plan(config(*flags), 10_000, world, former(*flags, world=4))
        assert plan.global_batch == 512
        assert {len(plan.parts_of(rank)) for rank in range(world)} == {2}


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
        assert plan.samples_by(2 * plan.steps_per_epoch) == 2 * len(seen)


def test_samples_are_counted_in_the_middle_of_an_epoch() -> None:
    plan = make_plan(config("--global-batch", "16"), 100, 1)
    assert [plan.samples_by(step) for step in (0, 1, 6, 7, 8, 15)] == [0, 16, 96, 100, 116, 216]


@pytest.mark.parametrize("world", [1, 3, 4])
def test_the_slices_of_the_ranks_are_the_parts_in_the_order_of_use(world: int) -> None:
    plan = make_plan(config("--global-batch", "9", "--grad-accum-steps", "2"), 20, world)
    visited = []
    for rank in range(world):
        slices = list(plan.slices_of(rank, range(3, 6)))  # the second epoch: 9, 9 and 2 images
        assert len(slices) == 3 * len(plan.parts_of(rank)) and all(
            s.start < s.stop <= 20 for s in slices
        )
        for n, part in enumerate(slices):
            step, k = divmod(n, len(plan.parts_of(rank)))
            start, end = plan.batch_of(3 + step)
            first, last = part_bounds(end - start, plan.parts, plan.parts_of(rank)[k])
            if first == last:  # an empty one has an image that does not count
                assert part.stop - part.start == 1
            else:
                assert (part.start, part.stop) == (start + first, start + last)
                visited += range(part.start, part.stop)
    assert sorted(visited) == list(range(20))


def test_each_epoch_and_each_seed_has_its_own_order() -> None:
    orders = {(s, e): tuple(epoch_order(s, e, 50).tolist()) for s in range(4) for e in range(4)}
    assert len(set(orders.values())) == 16, "seed 0 epoch 1 must not be seed 1 epoch 0"
    assert orders[1, 2] == tuple(epoch_order(1, 2, 50).tolist())
