"""N ranks compute what one process would: gradients, uneven batches, accumulation, shards."""

from __future__ import annotations

from pathlib import Path

import torch
from trainer_ranks import batches, make, on_ranks, same

from trainer import train
from trainer.distributed import Ranks, check_replicas
from trainer.errors import ReplicaMismatch, TrainerError
from trainer.model import flatten
from trainer.state import from_checkpoint, to_checkpoint

FROZEN = ("--bn", "frozen")


def gradient(ranks: Ranks | None, size: int, *more: str) -> tuple[torch.Tensor, float]:
    """Gradient of the mean loss of a batch of `size` images, and that loss, as training sees them."""
    t = make(ranks, "--synthetic-train", str(size), *more)
    train.backward(t, batches(t))
    loss, images = t.ranks.sum_(t.poll.totals[:2].clone()).tolist()
    assert images == size
    return flatten([p.grad for p in t.net.parameters if p.grad is not None]), loss / images


def gradients(
    ranks: Ranks | None, sizes: list[int], *more: str
) -> list[tuple[torch.Tensor, float]]:
    return [gradient(ranks, size, *more) for size in sizes]


def error(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


def test_ranks_equal_one_process(tmp_path: Path) -> None:
    """Frozen statistics: the gradient of a big batch, whole (16), uneven (13) and so small that
    some ranks have no image (3)."""
    sizes = [16, 13, 3]
    alone = gradients(None, sizes, *FROZEN)
    for count in (2, 4):
        results = on_ranks(tmp_path / "r", count, gradients, sizes, *FROZEN)
        for of_rank in results:
            for (got, logged), (wanted, loss) in zip(of_rank, alone, strict=True):
                assert error(got, wanted) < 1e-6, count
                assert abs(logged - loss) < 1e-6
        assert same(results[0], results[-1])


def mean_of_means(ranks: Ranks, size: int) -> torch.Tensor:
    """What plain DDP gives: each rank's mean loss, averaged."""
    t = make(ranks, "--synthetic-train", str(size), *FROZEN)
    _, x, y = next(batches(t))
    torch.nn.functional.cross_entropy(t.net.trained(x), y).backward()
    return flatten([p.grad for p in t.net.parameters if p.grad is not None])


def test_the_weighting_matters(tmp_path: Path) -> None:
    """A test of the test above: an unweighted mean of unequal ranks is far off."""
    alone, _ = gradient(None, 3, *FROZEN)
    assert error(on_ranks(tmp_path / "r", 2, mean_of_means, 3)[0], alone) > 1e-2


def test_accumulation_equals_one_batch_and_logs_all_of_it() -> None:
    for size in (16, 13, 3):
        whole, loss = gradient(None, size, *FROZEN)
        for count in ("2", "4"):
            parts, logged = gradient(None, size, *FROZEN, "--grad-accum-steps", count)
            assert error(parts, whole) < 1e-6
            assert abs(logged - loss) < 1e-6


def test_local_batch_norm_on_ranks_is_ghost_batch_norm_alone(tmp_path: Path) -> None:
    ghost, _ = gradient(None, 16, "--grad-accum-steps", "4")
    big, _ = gradient(None, 16)
    assert error(big, ghost) > 1e-2, "batch norm must matter here"
    for count, accumulated in ((2, "2"), (4, "1")):
        (got, _), *_ = on_ranks(
            tmp_path / "r", count, gradient, 16, "--grad-accum-steps", accumulated
        )
        assert error(got, ghost) < 1e-6, count


def shard_gradients(ranks: Ranks | None, *sizes: int) -> list[list[torch.Tensor]]:
    results = []
    for size in sizes:
        t = make(ranks, "--synthetic-train", str(size), "--canonical-shards", "4")
        train.backward(t, batches(t))
        gradients = [p.grad for p in t.net.parameters if p.grad is not None]
        results.append([*gradients, *t.net.model.buffers()])
    return results


def test_canonical_shards_sum_in_one_order(tmp_path: Path) -> None:
    alone = shard_gradients(None, 16, 3)
    for count in (2, 4):
        for got in on_ranks(tmp_path / "r", count, shard_gradients, 16, 3):
            assert same(got, alone), count


def test_canonical_shards_compute_the_gradient_of_ghost_batches() -> None:
    for size in (16, 13):
        ghost, _ = gradient(None, size, "--grad-accum-steps", "4")
        shards, _ = gradient(None, size, "--canonical-shards", "4")
        assert error(shards, ghost) < 1e-6


def test_a_batch_of_fewer_than_two_images_per_part_has_no_statistics_of_its_own() -> None:
    moved = {}
    for size in (16, 8, 7, 3):  # in four parts
        t = make(None, "--synthetic-train", str(size), "--grad-accum-steps", "4")
        before = flatten(t.net.moving)
        train.backward(t, batches(t))
        moved[size] = not torch.equal(flatten(t.net.moving), before)
    assert moved == {16: True, 8: True, 7: False, 3: False}


def perturbed(ranks: Ranks, odd: int) -> str:
    t = make(ranks)
    check_replicas(t.ranks, t.net.parameters, t.step)
    if ranks.rank == odd:
        bits = t.net.parameters[1].data[:1].view(torch.int32)  # of a batch norm
        bits ^= 1  # the smallest change there is
    try:
        check_replicas(t.ranks, t.net.parameters, t.step)
    except ReplicaMismatch as error:
        return str(error)
    return "unnoticed"


def test_one_flipped_bit_on_one_rank_is_noticed_by_all(tmp_path: Path) -> None:
    messages = on_ranks(tmp_path / "r", 3, perturbed, 1)
    assert len(set(messages)) == 1
    assert "weights of rank 1 differ" in messages[0]
    assert on_ranks(tmp_path / "r", 3, perturbed, 9) == ["unnoticed"] * 3


def agreement(ranks: Ranks) -> str:
    try:
        with ranks.agreeing():
            if ranks.rank == 1:
                raise TrainerError("only here")
    except TrainerError as error:
        return f"{type(error).__name__} {error}"
    return "nothing"


def test_an_error_of_one_rank_is_the_same_error_of_all(tmp_path: Path) -> None:
    messages = on_ranks(tmp_path / "r", 2, agreement)
    assert len(set(messages)) == 1
    assert messages[0].startswith("TrainerError rank 1 on ")
    assert messages[0].endswith(": only here")


def loss_after(more: tuple[str, ...], steps: int) -> float:
    """The loss of the last of `steps` steps, each of which is an epoch."""
    t = make(None, *more)
    for _ in range(steps):
        t.poll.totals.zero_()
        train.train_step(t, batches(t))
    return float(t.poll.totals[0] / t.poll.totals[1])


OVERFIT = (
    *("--synthetic-train", "64", "--global-batch", "64", "--epochs", "60", "--no-augment"),
    *("--width", "8", "--lr", "0.2"),
)


def test_sixty_four_images_are_learnt_by_heart() -> None:
    assert loss_after(OVERFIT, 60) < 0.05


def test_nothing_is_learnt_without_updates() -> None:
    assert loss_after((*OVERFIT, "--lr", "0"), 20) > 1.5


def test_mixed_precision_trains_and_the_scale_is_saved(tmp_path: Path) -> None:
    assert loss_after((*OVERFIT, "--amp", "bf16"), 60) < 0.1
    t = make(None, "--amp", "fp16")
    train.train_step(t, batches(t))
    state, meta = to_checkpoint(t)
    assert state["scaler"]["scale"] == t.scaler.get_scale()  # type: ignore[union-attr]
    other = make(None, "--amp", "fp16")
    state["scaler"]["scale"] = 1234.0
    from_checkpoint(other, state, meta)
    assert other.scaler.get_scale() == 1234.0  # type: ignore[union-attr]
    assert other.step == 1
