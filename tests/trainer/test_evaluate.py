"""Every image is counted once, at any number of ranks, and the numbers are the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_gradients import ALONE, make
from trainer_ranks import Job, newest_state, on_ranks, same

from trainer import checkpoint, train
from trainer import evaluate as evaluation
from trainer.distributed import Ranks, averaged_statistics
from trainer.evaluate import evaluate, record_evaluation
from trainer.model import flatten, norms, statistics
from trainer.state import Training

# Blocks of 10: 51 images are 6 blocks with one image in the last, so ranks get unequal shares.
FLAGS = ("--synthetic-test", "51", "--global-batch", "12", "--label-smoothing", "0.1")


def some_training() -> Training:
    t = make(ALONE, *FLAGS)
    for _ in range(6):
        train.train_step(t, torch.arange(t.plan.samples))
    return t


def by_hand(t: Training) -> tuple[int, float]:
    x, y = t.data.eval_batch("test", 0, t.data.size("test"))
    t.model.eval()
    with torch.no_grad():
        logits = t.model(x)
    loss = torch.nn.functional.cross_entropy(logits, y, reduction="sum")
    return int((logits.argmax(1) == y).sum()), float(loss) / len(y)


def result_on(ranks: Ranks, weights: dict[str, torch.Tensor]) -> tuple[object, object, bool]:
    t = make(ranks, *FLAGS)
    t.model.load_state_dict(weights)
    before = flatten(statistics(t.model))
    first = evaluate(t, "test")
    second = evaluate(t, "test")
    after = flatten(statistics(t.model))
    return first, second, torch.equal(before, after)


def test_exact_and_equal_at_any_world_size(tmp_path: Path) -> None:
    t = some_training()
    correct, loss = by_hand(t)
    alone, _, _ = result_on(ALONE, t.model.state_dict())
    assert alone["n"] == 51 and alone["correct1"] == correct  # type: ignore[index]
    assert alone["loss"] == pytest.approx(loss, rel=1e-6)  # type: ignore[index]
    assert alone["correct5"] >= correct and alone["top1"] == correct / 51  # type: ignore[index]
    for count in (2, 3, 4):
        for first, second, untouched in on_ranks(
            tmp_path / "r", count, result_on, t.model.state_dict()
        ):
            own, again = first.pop("ranks"), second.pop("ranks")  # type: ignore[attr-defined]
            assert own == again and len(own["top1"]) == len(own["loss"]) == count
            assert min(own["loss"]) <= loss <= max(own["loss"])
            assert first == alone, count
            assert second == first, "evaluating twice differs"
            assert untouched


def different_statistics(ranks: Ranks) -> tuple[float, float]:
    """Each rank's own running mean is its rank number: evaluation must use their average."""
    t = make(ranks, *FLAGS)
    mean = norms(t.model)[0].running_mean
    assert mean is not None
    mean.fill_(float(ranks.rank))
    with averaged_statistics(t.model, ranks, when=t.own_statistics):
        inside = float(mean[0])
    return inside, float(mean[0])


def test_statistics_are_averaged_for_evaluation_and_put_back(tmp_path: Path) -> None:
    results = on_ranks(tmp_path / "r", 4, different_statistics)
    assert results == [(1.5, 0.0), (1.5, 1.0), (1.5, 2.0), (1.5, 3.0)]


def result_with_shifted(ranks: Ranks, weights: dict[str, torch.Tensor], shift: float) -> object:
    """Rank r's first running mean is off by r - (W-1)/2 + shift: on average, by the shift."""
    t = make(ranks, *FLAGS)
    t.model.load_state_dict(weights)
    mean = norms(t.model)[0].running_mean
    assert mean is not None
    mean += ranks.rank - (ranks.world_size - 1) / 2 + shift
    return evaluate(t, "test")


def test_evaluation_uses_the_average_of_the_ranks_statistics(tmp_path: Path) -> None:
    weights = some_training().model.state_dict()
    alone = result_with_shifted(ALONE, weights, 0.0)
    other = result_with_shifted(ALONE, weights, 0.5)
    for got in on_ranks(tmp_path / "r", 2, result_with_shifted, weights, 0.0):
        assert got["loss"] == pytest.approx(alone["loss"], rel=1e-5)  # type: ignore[index]
        assert got["loss"] != pytest.approx(other["loss"], rel=1e-3)  # type: ignore[index]


def test_a_validation_split_chooses_and_the_test_set_only_reports(tmp_path: Path) -> None:
    job = Job(tmp_path / "run", "--val-split", "0.2", "--epochs", "2", count=2).done()
    evals = [(m["split"], m["n"], m["selected_on"]) for m in job.metrics("eval")]
    assert evals == [("val", 20, "val"), ("val", 20, "val"), ("test", 51, "val")]
    assert job.metrics("start")[0]["steps_per_epoch"] == 5  # 80 images in batches of 16
    assert job.status["selected_on"] == "val"


def test_the_test_set_never_chooses_the_best_of_a_run_with_a_validation_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    results = iter([("val", 0.5), ("test", 0.9), ("val", 0.4)])

    def fake(t: Training, split: str) -> dict[str, object]:
        wanted, top1 = next(results)
        assert split == wanted
        numbers = {"n": 1, "correct1": 1, "top5": 1.0, "loss": 1.0}
        return {"split": split, "top1": top1, **numbers}

    t = make(ALONE, "--val-split", "0.2")
    monkeypatch.setattr(evaluation, "evaluate", fake)
    for split in ("val", "test", "val"):
        record_evaluation(t, split)
    assert (t.best["top1"], t.best["selected_on"]) == (0.5, "val")


def test_evaluating_a_checkpoint_only(tmp_path: Path) -> None:
    trained = Job(tmp_path / "run").done()
    job = Job(
        tmp_path / "other",
        *("--test-only", "--resume", str(tmp_path / "run")),
        count=2,
    ).done()
    before, after = trained.metrics("eval")[-1], job.metrics("eval")[-1]
    assert {k: after[k] for k in ("step", "n", "correct1", "loss")} == {
        k: before[k] for k in ("step", "n", "correct1", "loss")
    }
    assert not job.metrics("train")
    assert not list((tmp_path / "other").glob("**/state.pt"))


def test_averaged_weights_are_what_is_evaluated_and_exported(tmp_path: Path) -> None:
    job = Job(tmp_path / "run", "--ema", "0.5").done()
    exported = torch.load(tmp_path / "run" / "epoch_2.pth")
    t = make(ALONE)
    t.model.load_state_dict(exported)  # no "module.", every key there
    correct, _ = by_hand(t)
    assert correct == job.metrics("eval")[-1]["correct1"]
    state = newest_state(tmp_path / "run")
    names = [name for name, _ in t.model.named_parameters()]
    assert torch.equal(exported[names[0]], state["ema"][0])
    assert not torch.equal(exported[names[0]], state["model"][names[0]])


def test_the_newest_and_the_best_export_are_kept(tmp_path: Path) -> None:
    out = tmp_path / "run"
    job = Job(out, "--epochs", "4", "--save-every", "1ep", "--keep", "9", count=2).done()
    assert [path.name for path in out.glob("epoch_*.pth")] == ["epoch_4.pth"]
    best = max(job.metrics("eval"), key=lambda m: (m["top1"], -m["step"]))
    files = checkpoint.read(out / f"ckpt/step-{best['step']:08d}")
    chosen = checkpoint.decode(files)[0]["model"]
    assert same(torch.load(out / "best.pth"), chosen)
    assert job.status["best_top1"] == best["top1"]
