"""Augmentation on the device: the right pixels, as a function of (seed, epoch, sample) alone."""

from __future__ import annotations

import functools
import statistics
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy
from trainer_ranks import Job, batches, make, newest_state, same

from trainer import train
from trainer.config import Config
from trainer.data.augment import (
    PAD,
    changed,
    cropped,
    cutout,
    draw,
    flipped,
    mix,
    normalized,
    pad,
    random_erase,
)
from trainer.data.images import Batch
from trainer.data.order import mixed_seed

NUMBERS = torch.arange(64)


def pictures(n: int = 64, size: int = 32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1, 256, (n, size, size, 3), generator=generator).to(torch.uint8)


def test_each_crop_is_a_window_of_the_padded_image_at_the_place_that_is_drawn() -> None:
    images = pictures()
    border = pad(images)
    assert border.shape == (64, 40, 40, 3) and torch.equal(border[:, 4:-4, 4:-4], images)
    assert not border[:, :4].any() and not border[:, :, -4:].any()
    crops = cropped(border, NUMBERS, seed=1, epoch=2)
    down = (draw(NUMBERS, "down/1/2") * (2 * PAD + 1)).long()
    right = (draw(NUMBERS, "right/1/2") * (2 * PAD + 1)).long()
    for n in range(64):
        window = border[n, down[n] : down[n] + 32, right[n] : right[n] + 32]
        assert torch.equal(crops[n], window)
    assert (int(down.min()), int(down.max())) == (int(right.min()), int(right.max())) == (0, 8)


@pytest.mark.parametrize(
    "augmented",
    [
        lambda n, **key: cropped(pad(pictures()), n, **key),
        lambda n, **key: flipped(pictures()[n], n, ["flip"], **key),
    ],
    ids=["crop", "flip"],
)
def test_a_sample_looks_alike_in_any_batch_and_other_with_seed_and_epoch(augmented: object) -> None:
    whole = augmented(NUMBERS, seed=1, epoch=2)  # type: ignore[operator]
    few = torch.tensor([40, 3])
    assert torch.equal(augmented(few, seed=1, epoch=2), whole[few])  # type: ignore[operator]
    for key in ({"seed": 1, "epoch": 3}, {"seed": 2, "epoch": 2}):
        assert not torch.equal(augmented(NUMBERS, **key), whole)  # type: ignore[operator]


def test_half_of_the_images_are_mirrored() -> None:
    numbers = torch.arange(4000)
    images = pictures(4000, 2)
    mirrored = flipped(images, numbers, ["crop", "flip"], seed=0, epoch=0)
    changed = (mirrored != images).any(1).any(1).any(1)
    assert 0.46 < changed.float().mean() < 0.54
    assert torch.equal(mirrored[changed], images.flip(2)[changed])
    assert torch.equal(flipped(images, numbers, ["crop"], seed=0, epoch=0), images)


def test_alternating_flips_mirror_each_image_in_every_second_epoch() -> None:
    images = pictures()
    epochs = [flipped(images, NUMBERS, ["alternating-flip"], seed=5, epoch=n) for n in range(4)]
    assert torch.equal(epochs[0], epochs[2]) and torch.equal(epochs[1], epochs[3])
    assert torch.equal(epochs[1], epochs[0].flip(2))
    first = (epochs[0] == images).all(1).all(1).all(1).float().mean()
    assert 0.25 < first < 0.75
    other = flipped(images, NUMBERS, ["alternating-flip"], seed=6, epoch=0)
    assert not torch.equal(other, epochs[0])


def test_what_is_drawn_is_spread_evenly_and_differs_by_key() -> None:
    numbers = torch.arange(90_000)
    shares = draw(numbers, "one")
    assert shares.dtype == torch.float64 and shares.min() >= 0 and shares.max() < 1
    counts = torch.bincount((shares * 9).long(), minlength=9)
    assert (counts - 10_000).abs().max() < 500  # five sigma
    pairs = torch.stack([shares, draw(numbers, "two"), shares.roll(1)])
    assert (torch.corrcoef(pairs) - torch.eye(3)).abs().max() < 0.02
    assert draw(torch.tensor([7]), "one") == shares[7]
    known = [0.4528, 0.9988, 0.6898]  # a run goes on with the crops it began with
    assert [round(float(value), 4) for value in draw(torch.arange(3), "one")] == known


@pytest.mark.parametrize("channels_last", [True, False])
def test_pixels_are_normalized(channels_last: bool) -> None:
    images = pictures(3, 4)
    mean, scale = torch.tensor((10.0, 20.0, 30.0)), torch.tensor((2.0, 0.5, 1.0))
    x = normalized(images, mean, scale, channels_last)
    assert torch.equal(x, ((images.float() - mean) * scale).permute(0, 3, 1, 2))
    assert x.is_contiguous() != channels_last


def ones(size: int = 32) -> torch.Tensor:
    return torch.ones(len(NUMBERS), 3, size, size)


def test_cutout_erases_one_square_centered_at_the_place_that_is_drawn() -> None:
    x = cutout(ones(), NUMBERS, 6, "k")
    top = (draw(NUMBERS, "k/top") * 32).long() - 3
    left = (draw(NUMBERS, "k/left") * 32).long() - 3
    for n in range(64):
        expected = torch.ones(3, 32, 32)
        rows = slice(max(0, int(top[n])), int(top[n]) + 6)
        expected[:, rows, max(0, int(left[n])) : int(left[n]) + 6] = 0
        assert torch.equal(x[n], expected)
    assert not torch.equal(x, cutout(ones(), NUMBERS, 6, "other"))


def test_random_erasing_is_spread_as_torchvisions_is() -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    torch.manual_seed(0)
    many, size = 3000, 40
    image = torch.ones(1, size, size)
    boxes = [
        transforms.RandomErasing.get_params(image, (0.02, 0.33), (0.3, 3.3), [0.0])[:4]
        for _ in range(many)
    ]
    theirs = [(top, left, high, wide) for top, left, high, wide in boxes]
    numbers = torch.arange(many)
    erased = random_erase(torch.ones(many, 1, size, size), numbers, 1.0, "k")[:, 0] == 0
    ours = []
    for mask in erased:
        rows, columns = mask.any(1).nonzero(), mask.any(0).nonzero()
        top, left = int(rows.min()), int(columns.min())
        high, wide = int(rows.max()) - top + 1, int(columns.max()) - left + 1
        assert mask.sum() == high * wide
        ours.append((top, left, high, wide))
    for measure in (
        lambda top, left, high, wide: high * wide / size**2,
        lambda top, left, high, wide: high / wide,
        lambda top, left, high, wide: top / (size - high + 1e-9),
        lambda top, left, high, wide: left / (size - wide + 1e-9),
    ):
        a, b = ([measure(*box) for box in found] for found in (ours, theirs))
        assert statistics.mean(a) == pytest.approx(statistics.mean(b), rel=0.06)
        assert statistics.stdev(a) == pytest.approx(statistics.stdev(b), rel=0.15)
    assert min(high * wide for _, _, high, wide in ours) >= 0.015 * size**2
    assert max(top + high for top, _, high, _ in ours) == size
    assert max(left + wide for _, left, _, wide in ours) == size


def test_a_share_of_the_images_is_erased() -> None:
    numbers = torch.arange(2000)
    erased = (random_erase(torch.ones(2000, 1, 16, 16), numbers, 0.3, "k") == 0).flatten(1).any(1)
    assert 0.26 < erased.float().mean() < 0.34


def test_what_is_erased_follows_seed_epoch_and_flag() -> None:
    batch = Batch(NUMBERS, ones(), NUMBERS % 2)
    config = functools.partial(Config, data="synthetic")
    assert changed(batch, config(), epoch=3) is batch.x
    square = changed(batch, config(cutout=5, seed=2), epoch=3)
    assert torch.equal(square, cutout(ones(), NUMBERS, 5, "cutout/2/3"))
    box = changed(batch, config(random_erase=0.5, seed=2), epoch=3)
    assert torch.equal(box, random_erase(ones(), NUMBERS, 0.5, "random_erase/2/3"))
    both = changed(batch, config(cutout=5, random_erase=0.5, seed=2), epoch=3)
    assert torch.equal(both == 0, (square == 0) | (box == 0))


def test_the_loop_erases_anew_each_epoch() -> None:
    first, _, _ = seen_and_lost("--cutout", "6")
    plain, _ = originals()
    assert torch.equal(first, cutout(plain, torch.arange(16), 6, "cutout/0/0"))
    second, _, _ = seen_and_lost("--cutout", "6", step=7)
    assert torch.equal(second, cutout(plain, torch.arange(16), 6, "cutout/0/1"))


def seen_and_lost(*flags: str, step: int = 0) -> tuple[torch.Tensor, torch.Tensor, float]:
    """The network's input for the first micro-batch, its logits, and the mean loss that is counted."""
    t = make(None, "--no-augment", "--bn", "frozen", *flags)
    t.step = step
    seen: list[torch.Tensor] = []
    t.net.model.register_forward_hook(lambda net, x, out: seen.extend((x[0], out.detach())))
    train.micro_batch_loss(t, 16, 0, batches(t))
    return seen[0], seen[1], float(t.poll.totals[0] / t.poll.totals[1])


def originals() -> tuple[torch.Tensor, torch.Tensor]:
    _, x, y = next(batches(make(None, "--no-augment")))
    return x, y


def test_mixup_blends_images_and_labels_by_the_same_share() -> None:
    plain, labels = originals()
    other = plain.roll(1, 0)
    shares = []
    for step in (0, 7):
        x, logits, loss = seen_and_lost("--mixup", "0.4", step=step)
        share = float(((x - other) * (plain - other)).sum() / (plain - other).square().sum())
        torch.testing.assert_close(x, share * plain + (1 - share) * other)
        own, others = cross_entropy(logits, labels), cross_entropy(logits, labels.roll(1))
        assert loss == pytest.approx(float(share * own + (1 - share) * others), rel=1e-4)
        shares.append(share)
    assert shares[0] != pytest.approx(shares[1])


def test_cutmix_pastes_a_box_and_counts_its_area() -> None:
    plain, labels = originals()
    other = plain.roll(1, 0)
    for seed in ("0", "1", "2"):
        x, logits, loss = seen_and_lost("--cutmix", "1.0", "--seed", seed)
        pasted = (x == other).all(1).all(0)
        assert torch.equal(x, torch.where(pasted, other, plain))
        share = 1 - float(pasted.float().mean())
        own, others = cross_entropy(logits, labels), cross_entropy(logits, labels.roll(1))
        assert loss == pytest.approx(float(share * own + (1 - share) * others), rel=1e-4)


def test_shares_of_mixup_follow_the_beta_distribution_of_their_alpha() -> None:
    x = ones(4)
    for alpha in (0.2, 2.0):
        shares = [mix(x, alpha, 0.0, seed=seed)[1] for seed in range(2000)]
        assert statistics.mean(shares) == pytest.approx(0.5, abs=0.03)
        assert statistics.pvariance(shares) == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.1)


def test_boxes_of_cutmix_are_as_large_as_their_share_and_anywhere() -> None:
    x = torch.arange(64.0)[:, None, None, None].expand(-1, 1, 32, 32).contiguous()
    areas, kept, middles = [], [], []
    for seed in range(600):
        mixed, share = mix(x, 0.0, 1.0, seed=seed)
        pasted = mixed[1, 0] == 0
        assert share == pytest.approx(1 - float(pasted.float().mean()))
        kept.append(share)
        if pasted.any():
            rows, columns = pasted.any(1).nonzero(), pasted.any(0).nonzero()
            areas.append((len(rows), len(columns)))
            middles.append((float(rows.float().mean()), float(columns.float().mean())))
    # A box that is cut off at the border is smaller; in the middle its sides are equal.
    inside = [a for a, m in zip(areas, middles, strict=True) if all(8 < c < 23 for c in m)]
    assert all(abs(high - wide) <= 1 for high, wide in inside if max(high, wide) < 16)
    assert 0.55 < statistics.mean(kept) < 0.72
    for axis in (0, 1):
        places = [m[axis] for m in middles]
        assert (
            statistics.mean(places) == pytest.approx(15.5, abs=1) and statistics.stdev(places) > 5
        )


def test_with_both_each_batch_has_one_of_them() -> None:
    plain, _ = originals()
    inputs = [seen_and_lost("--mixup", "1", "--cutmix", "1", "--seed", str(n)) for n in range(12)]
    originals_ = [originals()[0] for _ in inputs]
    cut = [
        bool(((x == a) | (x == a.roll(1, 0))).all())
        for (x, _, _), a in zip(inputs, originals_, strict=True)
    ]
    assert 2 <= sum(cut) <= 10 and torch.equal(plain, originals_[0])
    assert mix(plain, 0.0, 0.0, seed=0) == (plain, 1.0)


def test_a_batch_is_mixed_by_seed_step_and_micro_batch() -> None:
    t = make(None, "--mixup", "1", "--grad-accum-steps", "2", "--seed", "4", "--no-augment")
    t.step = 2
    seen: list[torch.Tensor] = []
    t.net.model.register_forward_hook(lambda net, x, out: seen.append(x[0]))
    train.backward(t, batches(t))
    plain = batches(t)
    for part, x in enumerate(seen):
        expected, _ = mix(next(plain).x, 1.0, 0.0, seed=mixed_seed(f"mix/4/2/{part}"))
        assert torch.equal(x, expected)


def test_all_of_them_resume_bitwise(tmp_path: Path) -> None:
    flags = ("--cutout", "5", "--mixup", "0.2", "--cutmix", "1", "--schedule", "constant")
    flags += ("--warmup-epochs", "0", "--random-erase", "0.5", "--augment", "crop,alternating-flip")
    whole = Job(tmp_path / "whole", *flags, "--max-steps", "9", count=2).done()
    Job(tmp_path / "part", *flags, "--max-steps", "4", count=2).done()
    Job(tmp_path / "part", *flags, "--max-steps", "9", "--resume", "auto", count=2).done()
    assert same(newest_state(whole.out), newest_state(tmp_path / "part"))
