"""What other programs read, and what people see."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from test_gradients import ALONE, make
from trainer_ranks import Job, metrics, newest_state, on_ranks, same

from trainer.distributed import Ranks
from trainer.flags import parse
from trainer.logs import truncate
from trainer.train import set_determinism

KINDS = {
    "start": {"world", "nodes", "backend", "config", "resumed_from", "run", "attempt"},
    "train": {"step", "epoch", "samples", "loss", "lr", "img_s", "step_ms", "data_ms", "mem_mb"},
    "eval": {"step", "epoch", "n", "correct1", "correct5", "top1", "loss", "split"},
    "checkpoint": {"step", "path", "bytes", "sha256", "seconds"},
    "end": {"state", "step", "seconds", "best_top1", "reason"},
}


def test_lines_are_the_same_at_any_world_size(tmp_path: Path) -> None:
    files = []
    for count in (1, 2, 4):
        job = Job(tmp_path / f"w{count}", "--plot", "--tensorboard", count=count).done()
        lines = metrics(job.out)
        for line in lines:
            assert KINDS[line["kind"]] | {"v", "ts"} <= set(line), line["kind"]
        # Checkpoints are written in the background: their lines may come a little later.
        files.append([(m["kind"], m["step"]) for m in lines if m["kind"] != "checkpoint"])
        assert [m["step"] for m in job.metrics("checkpoint")] == [7, 14]
        assert (job.out / "curves.png").read_bytes().startswith(b"\x89PNG")
        assert list((job.out / "tb").glob("events.*"))
        assert set(job.status) >= {"state", "step", "checkpoint", "reason"}
        assert [m["samples"] for m in job.metrics("train")][6:8] == [100, 116]
        for line in job.metrics("train"):
            own = line.get("ranks", {"loss": [line["loss"]], "img_s": [line["img_s"]]})
            assert len(own["loss"]) == len(own["img_s"]) == count
            assert sum(own["img_s"]) == pytest.approx(line["img_s"], abs=count)
            weights = [images / sum(own["img_s"]) for images in own["img_s"]]
            mean = sum(w * loss for w, loss in zip(weights, own["loss"], strict=True))
            assert mean == pytest.approx(line["loss"], rel=0.02)
        for line in job.metrics("eval"):
            assert len(line.get("ranks", {"top1": [0]})["top1"]) == count
    assert files[0] == files[1] == files[2]
    # What rank 0 prints for people: one line an event too.
    log = job.log()
    assert log.count("epoch 2  test: top-1") == 1
    assert log.count("step 14/14  loss") == 1
    assert all(word in log for word in ("eta", "img/s", "lr", "mem", "per rank"))
    assert sum(line.startswith("rank ") for line in log.splitlines()) == 4


def test_the_network_without_ddpctl_loads_the_export(tmp_path: Path) -> None:
    job = Job(tmp_path / "run", count=2).done()
    exported = torch.load(job.out / "epoch_2.pth")
    assert not any(name.startswith("module.") for name in exported)
    make(ALONE).model.load_state_dict(exported, strict=True)
    assert same(exported, newest_state(job.out)["model"])


def test_truncating_keeps_what_belongs(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    kinds = [("start", 0), ("train", 5), ("eval", 5), ("train", 9), ("end", 5), ("train", 5)]
    lines = [json.dumps({"kind": kind, "step": step}) + "\n" for kind, step in kinds]
    file.write_text("".join(lines) + '{"kind": "train", "st')  # torn by a kill
    truncate(file, 5)
    assert file.read_text() == "".join(lines[:3] + lines[5:])
    truncate(tmp_path / "none.jsonl", 5)


def test_deterministic_is_really_on(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.are_deterministic_algorithms_enabled()
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    try:
        set_determinism(parse(["--deterministic"], {})[0])
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.backends.cudnn.deterministic
        assert not torch.backends.cudnn.benchmark
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    finally:
        torch.use_deterministic_algorithms(before)
        torch.backends.cudnn.deterministic = False


def test_two_runs_one_result(tmp_path: Path) -> None:
    a, b = (Job(tmp_path / name, "--deterministic", count=2).done() for name in "ab")
    assert same(newest_state(a.out), newest_state(b.out))
    other = Job(tmp_path / "c", "--deterministic", "--seed", "1", count=2).done()
    assert not same(newest_state(a.out), newest_state(other.out))


LEARN = (
    *("--synthetic-train", "2000", "--synthetic-test", "500", "--width", "8", "--lr", "0.1"),
    *("--global-batch", "50", "--epochs", "3", "--print-every", "20", "--eval-batch-size", "250"),
)


def test_synthetic_images_are_learnt_and_not_without_updates(tmp_path: Path) -> None:
    job = Job(tmp_path / "run", *LEARN, count=2).done()
    assert job.status["top1"] > 0.95
    idle = Job(tmp_path / "idle", *LEARN, "--lr", "0", "--epochs", "1", count=2).done()
    assert idle.status["top1"] < 0.3


def threads_of(ranks: Ranks) -> int:
    set_determinism(parse(["--canonical-shards", "2"], {})[0])
    return torch.get_num_threads()


def test_canonical_shards_fix_the_thread_count(tmp_path: Path) -> None:
    assert on_ranks(tmp_path / "r", 1, threads_of) == [1]
