"""Cutout, mixup, CutMix and RandAugment, as the network and the loss see them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from test_gradients import ALONE, make
from torch.nn.functional import cross_entropy
from trainer_ranks import Job, newest_state, same

from trainer import train
from trainer.data.pictures import OPERATIONS, randaugment

BATCH = torch.arange(16)


def seen_and_lost(*flags: str, step: int = 0) -> tuple[torch.Tensor, torch.Tensor, float]:
    """The network's input for a micro-batch, its logits, and the mean loss that the loop counts."""
    t = make(ALONE, "--no-augment", "--bn", "frozen", *flags)
    t.step = step
    seen: list[torch.Tensor] = []
    t.net.register_forward_hook(lambda net, given, out: seen.extend((given[0], out.detach())))
    train.micro_batch_loss(t, BATCH, 0)
    return seen[0], seen[1], float(t.totals[0] / t.totals[1])


def originals() -> tuple[torch.Tensor, torch.Tensor]:
    return make(ALONE, "--no-augment").data.train_batch(BATCH, seed=0, epoch=0)


def test_cutout_erases_one_square_of_each_image_anew_each_epoch() -> None:
    plain, _ = originals()
    first, _, _ = seen_and_lost("--cutout", "6")
    changed = (first != plain).any(1)
    assert (first == 0)[changed[:, None].expand_as(first)].all()
    for image in changed:
        rows, columns = image.any(1).nonzero(), image.any(0).nonzero()
        height, width = (int(n.max() - n.min()) + 1 for n in (rows, columns))
        assert 3 <= height <= 6 and 3 <= width <= 6
        assert image.sum() == height * width
    assert torch.equal(first, seen_and_lost("--cutout", "6")[0])
    assert not torch.equal(first, seen_and_lost("--cutout", "6", step=7)[0])


def test_mixup_blends_images_and_labels_by_the_same_share() -> None:
    plain, labels = originals()
    other = plain.roll(1, 0)
    shares = []
    for step in (0, 1):
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
    for step in (0, 1, 2):
        x, logits, loss = seen_and_lost("--cutmix", "1.0", step=step)
        pasted = (x == other).all(1).all(0)
        assert torch.equal(x, torch.where(pasted, other, plain))
        share = 1 - float(pasted.float().mean())
        own, others = cross_entropy(logits, labels), cross_entropy(logits, labels.roll(1))
        assert loss == pytest.approx(float(share * own + (1 - share) * others), rel=1e-4)


def test_with_both_each_batch_has_one_of_them() -> None:
    plain, _ = originals()
    inputs = [seen_and_lost("--mixup", "1", "--cutmix", "1", step=n)[0] for n in range(12)]
    cut = [bool(((x == plain) | (x == plain.roll(1, 0))).all()) for x in inputs]
    assert 2 <= sum(cut) <= 10


def test_all_of_them_resume_bitwise(tmp_path: Path) -> None:
    flags = ("--cutout", "5", "--mixup", "0.2", "--cutmix", "1", "--schedule", "constant")
    flags += ("--warmup-epochs", "0")
    whole = Job(tmp_path / "whole", *flags, "--max-steps", "9", count=2).done()
    Job(tmp_path / "part", *flags, "--max-steps", "4", count=2).done()
    Job(tmp_path / "part", *flags, "--max-steps", "9", "--resume", "auto", count=2).done()
    assert same(newest_state(whole.out), newest_state(tmp_path / "part"))


def test_every_operation_of_randaugment_keeps_the_size() -> None:
    picture = Image.radial_gradient("L").convert("RGB").resize((40, 30))
    changed = 0
    for operation in OPERATIONS:
        for strength in (-0.7, 0.7):
            out = operation(picture, strength)
            assert (out.size, out.mode) == ((40, 30), "RGB")
            changed += out.tobytes() != picture.tobytes()
    assert changed >= 2 * (len(OPERATIONS) - 3)
    once, again, other = (randaugment(picture, 9, seed).tobytes() for seed in (3, 3, 4))
    assert once == again != other
