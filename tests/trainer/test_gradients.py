"""N ranks compute what one process would: gradients, uneven batches, accumulation, shards."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from trainer_ranks import TINY, on_ranks, same

from trainer import train
from trainer.data import load_dataset
from trainer.distributed import Ranks, check_replicas, identify
from trainer.errors import ReplicaMismatch, TrainerError
from trainer.flags import parse
from trainer.model import flatten, norms, statistics
from trainer.optim import make_plan
from trainer.setup import build
from trainer.state import Training
from trainer.tools import canonical_shards

ALONE = identify({}, torch.device("cpu"))
FROZEN = ("--bn", "frozen")


def make(ranks: Ranks, *more: str) -> Training:
    torch.set_num_threads(1)
    config, _ = parse([*TINY, *more], {})
    data = load_dataset(config, ranks.device)
    t = build(config, make_plan(config, data.size("train"), ranks.world_size), ranks, data)
    for module in norms(t.model) if config.bn == "frozen" else ():
        module.eval()  # also where a test calls the network itself
    return t


def gradient(ranks: Ranks, size: int, *more: str) -> tuple[torch.Tensor, float]:
    """Gradient of the first `size` images' mean loss, and that loss, as training sees them."""
    t = make(ranks, *more)
    train.backward(t, torch.arange(size))
    loss, images = ranks.sum_(t.totals[:2].clone()).tolist()
    assert images == size
    return flatten([p.grad for p in t.parameters if p.grad is not None]), loss / images


def gradients(ranks: Ranks, sizes: list[int], *more: str) -> list[tuple[torch.Tensor, float]]:
    return [gradient(ranks, size, *more) for size in sizes]


def error(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


def test_ranks_equal_one_process(tmp_path: Path) -> None:
    """Frozen statistics: the gradient of a big batch, whole (16), uneven (13) and so small that
    some ranks have no image (3)."""
    sizes = [16, 13, 3]
    alone = gradients(ALONE, sizes, *FROZEN)
    for count in (2, 4):
        results = on_ranks(tmp_path / "r", count, gradients, sizes, *FROZEN)
        for of_rank in results:
            for (got, logged), (wanted, loss) in zip(of_rank, alone, strict=True):
                assert error(got, wanted) < 1e-6, count
                assert abs(logged - loss) < 1e-6
        assert same(results[0], results[-1])


def mean_of_means(ranks: Ranks, size: int) -> torch.Tensor:
    """What plain DDP gives: each rank's mean loss, averaged."""
    t = make(ranks, *FROZEN)
    x, y = t.data.train_batch(
        torch.arange(size)[size * ranks.rank // ranks.world_size :][: 1 if ranks.rank else 99],
        seed=0,
        epoch=0,
    )
    torch.nn.functional.cross_entropy(t.net(x), y).backward()
    return flatten([p.grad for p in t.parameters if p.grad is not None])


def test_the_weighting_matters(tmp_path: Path) -> None:
    """A test of the test above: an unweighted mean of unequal ranks is far off."""
    alone, _ = gradient(ALONE, 3, *FROZEN)
    assert error(on_ranks(tmp_path / "r", 2, mean_of_means, 3)[0], alone) > 1e-2


def test_accumulation_equals_one_batch_and_logs_all_of_it() -> None:
    for size in (16, 13, 3):
        whole, loss = gradient(ALONE, size, *FROZEN)
        for count in ("2", "4"):
            parts, logged = gradient(ALONE, size, *FROZEN, "--grad-accum-steps", count)
            assert error(parts, whole) < 1e-6
            assert abs(logged - loss) < 1e-6


def test_local_batch_norm_on_ranks_is_ghost_batch_norm_alone(tmp_path: Path) -> None:
    ghost, _ = gradient(ALONE, 16, "--grad-accum-steps", "4")
    big, _ = gradient(ALONE, 16)
    assert error(big, ghost) > 1e-2, "batch norm must matter here"
    for count, accumulated in ((2, "2"), (4, "1")):
        (got, _), *_ = on_ranks(
            tmp_path / "r", count, gradient, 16, "--grad-accum-steps", accumulated
        )
        assert error(got, ghost) < 1e-6, count


def shard_gradients(ranks: Ranks, *sizes: int) -> list[list[torch.Tensor]]:
    found = []
    for size in sizes:
        t = make(ranks, "--canonical-shards", "4")
        canonical_shards.backward(t, torch.arange(size), train.micro_batch_loss)
        found.append([*[p.grad for p in t.parameters if p.grad is not None], *t.model.buffers()])
    return found


def test_canonical_shards_sum_in_one_order(tmp_path: Path) -> None:
    alone = shard_gradients(ALONE, 16, 3)
    for count in (2, 4):
        for got in on_ranks(tmp_path / "r", count, shard_gradients, 16, 3):
            assert same(got, alone), count


def test_canonical_shards_compute_the_gradient_of_ghost_batches() -> None:
    for size in (16, 13):
        ghost, _ = gradient(ALONE, size, "--grad-accum-steps", "4")
        t = make(ALONE, "--canonical-shards", "4")
        canonical_shards.backward(t, torch.arange(size), train.micro_batch_loss)
        got = flatten([p.grad for p in t.parameters if p.grad is not None])
        assert error(got, ghost) < 1e-6


def test_one_image_or_none_has_no_statistics_of_its_own() -> None:
    moved = {}
    for size in (16, 3):  # in four parts: 4 images each, or 0, 1, 1, 1
        t = make(ALONE, "--grad-accum-steps", "4")
        before = flatten(statistics(t.model))
        train.backward(t, torch.arange(size))
        moved[size] = not torch.equal(flatten(statistics(t.model)), before)
    assert moved == {16: True, 3: False}


def perturbed(ranks: Ranks, odd: int) -> str:
    t = make(ranks, "--global-batch", "12")
    check_replicas(t.ranks, t.parameters, t.step)
    if ranks.rank == odd:
        bits = t.parameters[1].data[:1].view(torch.int32)  # of a batch norm
        bits ^= 1  # the smallest change there is
    try:
        check_replicas(t.ranks, t.parameters, t.step)
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
    t = make(ALONE, *more)
    order = torch.arange(t.plan.samples)
    for _ in range(steps):
        t.totals.zero_()
        train.train_step(t, order)
    return float(t.totals[0] / t.totals[1])


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
    t = make(ALONE, "--amp", "fp16")
    train.train_step(t, torch.arange(16))
    from trainer.state import from_checkpoint, to_checkpoint

    state, meta = to_checkpoint(t)
    assert state["scaler"]["scale"] == t.scaler.get_scale()  # type: ignore[union-attr]
    other = make(ALONE, "--amp", "fp16")
    state["scaler"]["scale"] = 1234.0
    from_checkpoint(other, state, meta)
    assert other.scaler.get_scale() == 1234.0  # type: ignore[union-attr]
    assert other.step == 1


def test_clipping_bounds_the_update() -> None:
    plain = ("--momentum", "0", "--weight-decay", "0", "--lr", "1", "--warmup-epochs", "0")
    moved = {}
    for limit in ("0", "0.01"):
        t = make(ALONE, *plain, "--clip-grad-norm", limit)
        before = flatten(list(t.model.parameters()))
        train.train_step(t, torch.arange(16))
        moved[limit] = float((flatten(list(t.model.parameters())) - before).norm())
    assert moved["0.01"] == pytest.approx(0.01, rel=1e-3)
    assert moved["0"] > 0.1
