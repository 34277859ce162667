"""The user's own networks, datasets and losses, without a change to the trainer."""

from __future__ import annotations

import os
import platform
import random
import re
import sys
from pathlib import Path
from typing import Any

import bad_data
import pytest
import torch
from own_parts import Stripes
from trainer_ranks import Job, batches, make, newest_state, same

from trainer import model, setup
from trainer.config import Config
from trainer.data import Resident, augment, load_dataset
from trainer.data.order import mixed_seed
from trainer.errors import CheckpointError, DataError

OWN = (
    *("--model", "own_parts:network", "--data", "own_parts:stripes", "--loss", "own_parts:squared"),
    *("--global-batch", "12", "--schedule", "constant", "--warmup-epochs", "0"),
)


@pytest.mark.parametrize("count", [1, 2])
def test_they_resume_bitwise_with_dropout_and_random_transforms(tmp_path: Path, count: int) -> None:
    whole = Job(tmp_path / "whole", *OWN, "--max-steps", "9", count=count).done()
    Job(tmp_path / "part", *OWN, "--max-steps", "4", count=count).done()
    part = tmp_path / "part"
    again = Job(part, *OWN, "--max-steps", "9", "--resume", "auto", count=count).done()
    assert "resumed from ckpt/step-00000004" in again.log()
    assert same(newest_state(whole.out), newest_state(part))


def test_an_optimizer_that_keeps_state_in_its_groups_resumes_bitwise(tmp_path: Path) -> None:
    own = ("--opt", "own_parts:Fading", "--schedule", "constant", "--warmup-epochs", "0")
    whole = Job(tmp_path / "whole", *own, "--max-steps", "6").done()
    Job(tmp_path / "part", *own, "--max-steps", "3").done()
    Job(tmp_path / "part", *own, "--max-steps", "6", "--resume", "auto").done()
    assert same(newest_state(whole.out), newest_state(tmp_path / "part"))


def test_a_network_of_timm_trains_by_its_name(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    job = Job(tmp_path / "run", "--model", "timm.models:resnet18", "--max-steps", "2", count=2)
    assert "timm.models:resnet18, 11,181,642 parameters" in job.done().log()


def test_they_learn(tmp_path: Path) -> None:
    job = Job(tmp_path / "run", *OWN, "--epochs", "8", "--lr", "0.2").done()
    assert job.status["top1"] > 0.9
    (*_, evaluation) = job.metrics("eval")
    assert evaluation["n"] == 20 and evaluation["loss"] < 0.5


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--model", "own_parts:nothing"), "--model own_parts:nothing: "),
        (("--data", "nowhere:fn"), "--data nowhere:fn: No module named 'nowhere'"),
        (("--loss", "hinge"), "--loss hinge: "),
        (("--opt", "nowhere:fn"), "--opt nowhere:fn: "),
        (("--schedule", "nowhere:fn"), "--schedule nowhere:fn: "),
        (("--metric", "nowhere:fn"), "--metric nowhere:fn: "),
        (("--report-to", "nowhere:fn"), f"rank 0 on {platform.node()}: --report-to nowhere:fn: "),
    ],
)
def test_a_failing_import_is_a_one_line_error(
    tmp_path: Path, flags: tuple[str, ...], words: str
) -> None:
    job = Job(tmp_path / "run", *flags, count=2)
    assert job.codes() == [2, 2]
    assert f"error: {words}" in job.log() and "Traceback" not in job.log()
    assert not job.metrics("train")


def without_own_parts_on_rank_1() -> None:
    if os.environ["RANK"] == "1":
        sys.modules["own_parts"] = None  # type: ignore[assignment]


def test_a_module_missing_on_one_host_ends_all_ranks_at_once(tmp_path: Path) -> None:
    job = Job(
        *(tmp_path / "run", "--model", "own_parts:network"),
        count=2,
        first=without_own_parts_on_rank_1,
    )
    assert job.codes() == [2, 2]
    assert f"error: rank 1 on {platform.node()}: --model own_parts:network: " in job.log()


def test_a_schedule_of_ones_own_gets_the_share_that_is_done_and_the_epoch(tmp_path: Path) -> None:
    flags = ("--schedule", "own_parts:steps_down", "--warmup-epochs", "0", "--lr", "0.1")
    job = Job(tmp_path / "run", *flags).done()  # 14 steps in 2 epochs
    assert [m["lr"] for m in job.metrics("train")] == pytest.approx(
        [0.1 * (1 - step / 14) * (1.0 if step < 7 else 0.5) for step in range(14)]
    )


def test_an_augmentation_of_ones_own_follows_the_others_and_may_replace_them() -> None:
    plain = next(batches(make(None, "--augment", "none")))
    own = make(None, "--augment", "own_parts:numbered", "--seed", "3", "--epochs", "5")
    own.step = 8  # in the second epoch
    changed = augment.changed(next(batches(own)), own.config, epoch=1)
    assert changed.shape == plain.x.shape
    batch = next(batches(make(None, "--augment", "none", "--seed", "3")))
    expected = batch.x + batch.indices[:, None, None, None] + 3 * 100 + 1 * 1000
    torch.testing.assert_close(
        augment.changed(batch, own.config, epoch=1), expected, rtol=0, atol=1e-3
    )
    both = make(None, "--augment", "crop,flip,own_parts:numbered")
    standard = next(batches(make()))
    assert same(next(batches(both)).x, standard.x)


def test_fine_tuning_starts_from_weights_and_a_new_last_layer(tmp_path: Path) -> None:
    Job(tmp_path / "base").done()
    weights = tmp_path / "base" / "epoch_2.pth"
    tuned = Job(
        tmp_path / "tuned",
        *("--weights", str(weights), "--num-classes", "12", "--lr", "0", "--max-steps", "1"),
        count=2,
    ).done()
    where = f"{weights} lacks these weights or has them in another shape, so they were not loaded"
    assert f"WARNING: {where}: fc.weight, fc.bias" in tuned.log()
    before, after = torch.load(weights), newest_state(tuned.out)["model"]
    assert torch.equal(before["conv1.weight"], after["conv1.weight"])
    assert after["fc.weight"].shape[0] == 12


def test_the_average_starts_from_the_weights_that_training_starts_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[int] = []
    monkeypatch.setattr(setup, "check_replicas", lambda ranks, values, step: checked.append(step))
    torch.save(make(None, "--seed", "5").net.model.state_dict(), tmp_path / "a.pth")
    t = make(None, "--ema", "0.9", "--weights", str(tmp_path / "a.pth"))
    assert t.net.ema and setup.start_values(t, None) == []
    assert same(list(t.net.ema.values), [value.detach() for value in t.net.ema.live])
    assert same(t.net.model.state_dict(), torch.load(tmp_path / "a.pth"))
    assert checked == [0]  # each rank may have read another file


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    network = model.build_model("resnet8", num_classes=10)
    torch.save({"other": torch.zeros(3)}, tmp_path / "other.pth")
    with pytest.raises(CheckpointError, match="none of its tensors fit"):
        model.load_weights(network, str(tmp_path / "other.pth"))
    with pytest.raises(CheckpointError, match="No such file"):
        model.load_weights(network, str(tmp_path / "none.pth"))


BAD_DATA = {
    "one_set": "the function must return two non-empty datasets of (image, label) pairs",
    "empty": "the function must return two non-empty datasets of (image, label) pairs",
    "no_classes": "unknown number of classes",
    "bytes_": "sample 0 of the train split: the image has dtype torch.uint8 and shape (3, 8, 8)",
    "flat": "sample 0 of the train split: the image has dtype torch.float32 and shape (8, 8)",
    "pictures": "sample 0 of the train split: .*; a sample must be an (image, label) pair",
    "lonely": "sample 0 of the train split: .*; a sample must be an (image, label) pair",
    "out_of_range": "sample 0 of the train split: label 2, but there are 2 classes",
    "negative": "sample 0 of the train split: label -1, but there are 2 classes",
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_data_that_does_not_fit_is_one_line_that_names_the_sample(name: str) -> None:
    words = re.escape(BAD_DATA[name]).replace(re.escape(".*"), ".*")
    with pytest.raises(DataError, match=words) as caught:
        load_dataset(Config(data=f"bad_data:{name}", workers=0), torch.device("cpu"))
    assert "\n" not in str(caught.value) and f"--data bad_data:{name}" in str(caught.value)


def test_a_sample_of_another_shape_or_label_is_found_when_it_is_loaded() -> None:
    for name, words in (
        ("ragged", "different shapes"),
        ("late", "sample 7 of the train split: label 9"),
    ):
        data = load_dataset(Config(data=f"bad_data:{name}", workers=0), torch.device("cpu"))
        with pytest.raises(DataError, match=words):
            list(data.train_batches(torch.arange(16), [slice(0, 16)], seed=0, epoch=0))


def own(**settings: Any) -> Any:
    settings = {"data": "own_parts:stripes", "workers": 0} | settings
    return load_dataset(Config(**settings), torch.device("cpu"))


def test_every_split_of_ones_own_data_has_its_own_pairs() -> None:
    data = load_dataset(
        Config(data="bad_data:numbered", val_split=0.25, workers=0), torch.device("cpu")
    )
    assert (data.size("train"), data.size("val"), data.size("test")) == (12, 4, 5)
    assert (data.num_classes, data.shape) == (16, (1, 2, 2))
    whole = [*data.train_batches(torch.arange(12), [slice(0, 12)], seed=0, epoch=0)]
    whole += data.eval_batches("val", [slice(0, 4)])
    seen = []
    for batch in whole:
        for number, image, label in zip(
            batch.indices.tolist(), batch.x, batch.y.tolist(), strict=True
        ):
            assert image.tolist() == [[[number] * 2] * 2] and label == 15 - number
            seen.append(number)
    assert sorted(seen) == list(range(16)) and batch.x.dtype == torch.float32
    ((_, x, y),) = data.eval_batches("test", [slice(1, 3)])
    assert x[:, 0, 0, 0].tolist() == [101, 102] and y.tolist() == [1, 2]


@pytest.mark.parametrize("workers", [0, 2])
def test_random_transforms_are_seeded_by_seed_epoch_split_and_sample(workers: int) -> None:
    data = own(workers=workers)

    def images(seed: int, epoch: int) -> torch.Tensor:
        parts = [slice(0, 30), slice(30, 60)]
        batches = data.train_batches(torch.arange(60), parts, seed=seed, epoch=epoch)
        return torch.cat([batch.x for batch in batches])

    first = images(0, 0)
    assert torch.equal(images(0, 0), first)
    assert not torch.equal(images(0, 1), first) and not torch.equal(images(1, 0), first)
    number = mixed_seed("sample/0/0/train/5")
    torch.manual_seed(number)
    random.seed(number)
    assert torch.equal(first[5], Stripes(60)[5][0])
    data.close()


def test_the_fingerprint_of_ones_own_data_shows_other_images_and_labels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = own().fingerprint
    assert own().fingerprint == before
    assert own(num_classes=2).fingerprint == before
    real = Stripes.__getitem__
    for change in (
        lambda image, label: (image + 1, label),
        lambda image, label: (image, 1 - label),
    ):
        monkeypatch.setattr(Stripes, "__getitem__", lambda self, n, c=change: c(*real(self, n)))
        assert own().fingerprint != before
    few = load_dataset(Config(data="bad_data:numbered", workers=0), torch.device("cpu"))
    train, test = bad_data.numbered()
    for number in range(5):  # every sample of a small set counts
        other = [test[n] if n != number else (test[n][0] + 1, test[n][1]) for n in range(5)]
        monkeypatch.setattr(bad_data, "numbered", lambda other=other: (train, other))
        changed = load_dataset(Config(data="bad_data:numbered", workers=0), torch.device("cpu"))
        assert changed.fingerprint != few.fingerprint


def test_an_object_with_the_methods_of_images_is_taken_as_it_is() -> None:
    data = load_dataset(Config(data="bad_data:images"), torch.device("cpu"))
    assert isinstance(data, Resident)
