"""The user's own networks, data sets and losses, without a change to the trainer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from trainer_ranks import Job, newest_state, same

from trainer import model
from trainer.errors import CheckpointError

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
    ],
)
def test_what_cannot_be_imported_is_one_line(
    tmp_path: Path, flags: tuple[str, ...], words: str
) -> None:
    job = Job(tmp_path / "run", *flags, count=2)
    assert job.codes() == [2, 2]
    assert f"error: {words}" in job.log() and "Traceback" not in job.log()


def test_fine_tuning_starts_from_weights_and_a_new_last_layer(tmp_path: Path) -> None:
    Job(tmp_path / "base").done()
    weights = tmp_path / "base" / "epoch_2.pth"
    tuned = Job(
        tmp_path / "tuned",
        *("--weights", str(weights), "--num-classes", "12", "--lr", "0", "--max-steps", "1"),
        count=2,
    ).done()
    assert f"WARNING: not in {weights}: fc.weight, fc.bias" in tuned.log()
    before, after = torch.load(weights), newest_state(tuned.out)["model"]
    assert torch.equal(before["conv1.weight"], after["conv1.weight"])
    assert after["fc.weight"].shape[0] == 12


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    network = model.build_model("resnet8", num_classes=10)
    torch.save({"other": torch.zeros(3)}, tmp_path / "other.pth")
    with pytest.raises(CheckpointError, match="nothing in it fits"):
        model.load_weights(network, str(tmp_path / "other.pth"))
    with pytest.raises(CheckpointError, match="No such file"):
        model.load_weights(network, str(tmp_path / "none.pth"))
