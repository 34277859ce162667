"""Every image is counted once, at any number of ranks, and the numbers are the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from trainer_ranks import Job, batches, make, newest_state, on_ranks, same

from trainer import checkpoint, train
from trainer import evaluate as evaluation
from trainer.distributed import Ranks
from trainer.evaluate import evaluate, record_evaluation
from trainer.model import flatten
from trainer.poll import Stopped
from trainer.state import Training

# Blocks of 10: 51 images are 6 blocks with one image in the last, so ranks get unequal shares.
FLAGS = ("--synthetic-test", "51", "--global-batch", "12", "--label-smoothing", "0.1")


def some_training() -> Training:
    t = make(None, *FLAGS)
    images = batches(t)
    for _ in range(6):
        train.train_step(t, images)
    return t


def by_hand(t: Training) -> tuple[int, float]:
    _, x, y = next(t.data.eval_batches("test", [slice(0, t.data.size("test"))]))
    t.net.model.eval()
    with torch.no_grad():
        logits = t.net.model(x)
    loss = torch.nn.functional.cross_entropy(logits, y, reduction="sum")
    return int((logits.argmax(1) == y).sum()), float(loss) / len(y)


def result_on(ranks: Ranks | None, weights: dict[str, torch.Tensor]) -> tuple[object, object, bool]:
    t = make(ranks, *FLAGS)
    t.net.model.load_state_dict(weights)
    before = flatten(t.net.moving)
    first = evaluate(t, "test")
    second = evaluate(t, "test")
    after = flatten(t.net.moving)
    return first, second, torch.equal(before, after)


def test_exact_and_equal_at_any_world_size(tmp_path: Path) -> None:
    t = some_training()
    correct, loss = by_hand(t)
    alone, _, _ = result_on(None, t.net.model.state_dict())
    assert alone["n"] == 51 and alone["correct1"] == correct  # type: ignore[index]
    assert alone["loss"] == pytest.approx(loss, rel=1e-6)  # type: ignore[index]
    assert alone["correct5"] >= correct and alone["top1"] == correct / 51  # type: ignore[index]
    for count in (2, 3, 4):
        for first, second, untouched in on_ranks(
            tmp_path / "r", count, result_on, t.net.model.state_dict()
        ):
            own, again = first.pop("ranks"), second.pop("ranks")  # type: ignore[attr-defined]
            assert own == again and len(own["top1"]) == len(own["loss"]) == count
            assert min(own["loss"]) <= loss <= max(own["loss"])
            assert first == alone, count
            assert second == first, "evaluating twice differs"
            assert untouched


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

    t = make(None, "--val-split", "0.2")
    monkeypatch.setattr(evaluation, "evaluate", fake)
    for split in ("val", "test", "val"):
        record_evaluation(t, split)
    assert (t.best["top1"], t.best["selected_on"]) == (0.5, "val")


def test_evaluating_a_checkpoint_leaves_its_run_alone(tmp_path: Path) -> None:
    """Also one in the middle of a run, and into that run's own folder."""
    out = tmp_path / "run"
    trained = Job(out, count=2).done()
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    older = out / "ckpt" / "step-00000007"
    job = Job(out, "--test-only", "--resume", str(older), "--global-batch", "9", count=2).done()
    result = json.loads((out / "eval.json").read_text())
    (out / "eval.json").unlink()
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    first = trained.metrics("eval")[0]
    assert {key: result[key] for key in first if key in result and key != "ts"} == {
        key: first[key] for key in first if key in result and key != "ts"
    }
    assert result["step"] == 7 and "epoch 1  test: top-1" in job.log()
    broken = Job(out, "--test-only", "--resume", str(tmp_path / "nowhere"))
    assert broken.codes() == [4]
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_an_evaluation_that_cannot_be_written_is_one_line_and_is_printed(tmp_path: Path) -> None:
    """As in the folder of another user's run."""
    out = tmp_path / "run"
    Job(out, "--max-steps", "2").done()
    (out / "eval.json").mkdir()
    job = Job(out, "--test-only", count=2)
    assert job.codes() == [1, 1]
    assert f"cannot write {out}/eval.json: Is a directory; pass another --out" in job.log()
    assert "test: top-1" in job.log() and "Traceback" not in job.log()
    again = Job(tmp_path / "mine", "--test-only", "--checkpoint-dir", str(out)).done()
    assert (tmp_path / "mine" / "eval.json").exists() and "test: top-1" in again.log()


def test_the_confusion_matrix_counts_every_image_by_class(tmp_path: Path) -> None:
    t = some_training()
    for result in (
        evaluate(t, "test", confusion=True),
        *on_ranks(tmp_path / "r", 2, confusion_on, t.net.model.state_dict()),
    ):
        _, x, y = next(t.data.eval_batches("test", [slice(0, 51)]))
        with torch.no_grad():
            guesses = t.net.model.eval()(x).argmax(1)
        matrix = torch.zeros(10, 10, dtype=torch.int64)
        for true, guess in zip(y.tolist(), guesses.tolist(), strict=True):
            matrix[true, guess] += 1
        assert result["confusion"] == matrix.tolist()


def confusion_on(ranks: Ranks, weights: dict[str, torch.Tensor]) -> dict[str, object]:
    t = make(ranks, *FLAGS)
    t.net.model.load_state_dict(weights)
    return evaluate(t, "test", confusion=True)


def test_mirror_images_are_averaged_and_reported_apart() -> None:
    t = some_training()
    plain = evaluate(t, "test")
    mirrored = make(None, *FLAGS, "--tta", "mirror")
    mirrored.net.model.load_state_dict(t.net.model.state_dict())
    result = evaluate(mirrored, "test")
    _, x, y = next(t.data.eval_batches("test", [slice(0, 51)]))
    with torch.no_grad():
        both = t.net.model.eval()(x) + t.net.model(x.flip(3))
    assert result["tta_top1"] == float((both.argmax(1) == y).double().mean())
    assert {key: result[key] for key in plain} == plain


def metric_on(ranks: Ranks | None, weights: dict[str, torch.Tensor], name: str) -> object:
    t = make(ranks, *FLAGS, "--metric", f"own_parts:{name}")
    t.net.model.load_state_dict(weights)
    return evaluate(t, "test")["metrics"]


def test_a_metric_of_ones_own_sees_the_whole_split_in_order(tmp_path: Path) -> None:
    t = some_training()
    weights = t.net.model.state_dict()
    _, x, y = next(t.data.eval_batches("test", [slice(0, 51)]))
    with torch.no_grad():
        logits = t.net.model.eval()(x)
    first = {"first": pytest.approx(float(logits[0].max()), rel=1e-5), "labels": float(y[-1])}
    assert metric_on(None, weights, "peculiar") == first
    assert metric_on(None, weights, "spread") == {"spread": float(y.float().std())}
    for found in on_ranks(tmp_path / "r", 3, metric_on, weights, "peculiar"):
        assert found == first


def test_the_best_weights_are_exported_whenever_they_are_evaluated(tmp_path: Path) -> None:
    """Also in the middle of an epoch, where a run ends."""
    for steps in ("5", "9"):
        out = tmp_path / steps
        flags = ("--max-steps", steps, "--schedule", "constant", "--lr", "0.1")
        job = Job(out, *flags, count=2).done()
        best = max(job.metrics("eval"), key=lambda m: (m["top1"], -m["step"]))
        t = make(None)
        t.net.model.load_state_dict(torch.load(out / "best.pth"))
        assert by_hand(t)[0] == best["correct1"] and job.status["best_step"] == best["step"]


def test_evaluating_every_second_epoch_and_at_the_end(tmp_path: Path) -> None:
    flags = ("--epochs", "5", "--eval-every", "2", "--export-every", "2")
    job = Job(tmp_path / "run", *flags).done()
    assert [m["epoch"] for m in job.metrics("eval")] == [2, 4, 5]
    assert [path.name for path in job.out.glob("epoch_*.pth")] == ["epoch_4.pth"]
    none = Job(tmp_path / "none", "--export-every", "0").done()
    assert not list(none.out.glob("epoch_*.pth"))


def test_evaluation_uses_mixed_precision() -> None:
    t = make(None, "--amp", "bf16")
    dtypes: list[torch.dtype] = []
    t.net.model.register_forward_hook(lambda net, args, out: dtypes.append(out.dtype))
    evaluate(t, "test")
    assert set(dtypes) == {torch.bfloat16} and len(dtypes) == 6


def test_a_stop_is_noticed_after_one_block_and_leaves_no_result() -> None:
    t = make(None, *FLAGS)
    blocks: list[int] = []
    t.net.model.register_forward_hook(lambda net, args, out: blocks.append(len(out)))
    t.poll.stop.name = "SIGTERM"
    with pytest.raises(Stopped):
        record_evaluation(t, "test")
    assert blocks == [10] and t.log.last == {} and t.best == {}
    assert evaluation.STOP_EVERY == 50  # blocks, on a GPU


def test_averaged_weights_are_what_is_evaluated_and_exported(tmp_path: Path) -> None:
    job = Job(tmp_path / "run", "--ema", "0.5").done()
    exported = torch.load(tmp_path / "run" / "epoch_2.pth")
    t = make()
    t.net.model.load_state_dict(exported)  # no "module.", every key there
    correct, _ = by_hand(t)
    assert correct == job.metrics("eval")[-1]["correct1"]
    state = newest_state(tmp_path / "run")
    assert same(exported, state["ema"])
    assert not same(exported, state["model"])


def test_the_newest_and_the_best_export_are_kept(tmp_path: Path) -> None:
    out = tmp_path / "run"
    job = Job(out, "--epochs", "4", "--save-every", "1ep", "--keep", "9", count=2).done()
    assert [path.name for path in out.glob("epoch_*.pth")] == ["epoch_4.pth"]
    best = max(job.metrics("eval"), key=lambda m: (m["top1"], -m["step"]))
    files = checkpoint.read(out / f"ckpt/step-{best['step']:08d}")
    chosen = checkpoint.decode(files)[0]["model"]
    assert same(torch.load(out / "best.pth"), chosen)
    assert job.status["best_top1"] == best["top1"]
