"""What other programs read, and what people see."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_ranks import (
    TINY,
    Job,
    batches,
    make,
    metrics,
    newest_state,
    on_ranks,
    same,
    torchrun,
)

from trainer import train
from trainer.data.order import epoch_order
from trainer.distributed import Ranks
from trainer.ending import finish
from trainer.logs import (
    LONGEST_SILENCE,
    Log,
    Progress,
    eval_line,
    peak_tflops,
    train_line,
    truncate,
)
from trainer.parse_flags import parse
from trainer.state import Training
from trainer.train import set_determinism

ROOT = Path(__file__).parents[2]
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
        job = Job(tmp_path / f"w{count}", count=count).done()
        lines = metrics(job.out)
        for line in lines:
            assert KINDS[line["kind"]] | {"v", "ts"} <= set(line), line["kind"]
        # Checkpoints are written in the background: their lines may come a little later.
        files.append([(m["kind"], m["step"]) for m in lines if m["kind"] != "checkpoint"])
        assert [m["step"] for m in job.metrics("checkpoint")] == [7, 14]
        assert set(job.status) >= {"state", "step", "checkpoint", "reason"}
        assert [m["samples"] for m in job.metrics("train")][6:8] == [100, 116]
    assert files[0] == files[1] == files[2]


def test_each_ranks_own_numbers_add_up_to_those_of_all(tmp_path: Path) -> None:
    job = Job(tmp_path / "run", count=3).done()
    for line in job.metrics("train"):
        own = line["ranks"]
        assert len(own["loss"]) == len(own["img_s"]) == 3
        assert sum(own["img_s"]) == pytest.approx(line["img_s"], abs=1)
        weights = [images / sum(own["img_s"]) for images in own["img_s"]]
        mean = sum(w * loss for w, loss in zip(weights, own["loss"], strict=True))
        assert mean == pytest.approx(line["loss"], rel=0.02)
    for line in job.metrics("eval"):
        assert len(line["ranks"]["top1"]) == 3


def test_rank_0_prints_one_line_per_event_for_people(tmp_path: Path) -> None:
    log = Job(tmp_path / "run", count=2).done().log()
    assert log.count("epoch 2  test: top-1") == 1
    assert log.count("step 14/14  loss") == 1
    assert all(word in log for word in ("eta", "img/s", "lr", "mem", "per rank", "grad norm"))
    assert sum(line.startswith("rank ") for line in log.splitlines()) == 2


def progress(**settings: int) -> Progress:
    t = make(None, "--print-every", "10")
    return Progress(t.config, t.plan, t.ranks, **settings)


def test_a_line_of_progress_has_the_means_since_the_line_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [50.0]
    monkeypatch.setattr("trainer.logs.time.perf_counter", lambda: now[0])
    p = progress(flops=2_000_000_000)
    p.restart(step=30)
    assert not p.due(39) and p.due(40)
    p.add(20.0, 16.0, [20.0, 16.0, 0.1], 0.5)
    p.add(12.0, 16.0, [12.0, 16.0, 0.1], 0.0)  # not measured at this step
    p.data_seconds += 0.3
    now[0] += 6.0
    p.pause(2.0)  # an evaluation: 4 seconds of training
    line = p.fields(step=32, epoch=5, lr=0.25)
    assert {key: line[key] for key in ("step", "epoch", "lr", "loss", "grad_norm")} == {
        "step": 32, "epoch": 5, "lr": 0.25, "loss": 1.0, "grad_norm": 0.5,
    }  # fmt: skip
    assert (line["img_s"], line["step_ms"], line["data_ms"]) == (8.0, 2000.0, 150.0)
    assert line["tflops"] == 0.016 and "mfu" not in line
    assert line["samples"] == 464  # four epochs of 100, and four batches
    assert line["eta_s"] == round(2.0 * (p.plan.total_steps - 32))
    assert 20 < line["mem_mb"] < 100_000
    now[0] += 1.0  # the next interval starts from nothing
    p.add(3.0, 2.0, [3.0, 2.0, 0.1])
    line = p.fields(step=33, epoch=5, lr=0.25)
    assert (line["loss"], line["img_s"], line["data_ms"], line["grad_norm"]) == (
        1.5,
        16.0,  # that of the step, although the loss of most of its images is not read yet
        0.0,
        None,
    )
    assert not p.due(34)
    now[0] += LONGEST_SILENCE - 0.5
    assert not p.due(34)
    now[0] += 0.5
    assert p.due(34)
    p.add(0.75, 1.0, [0.75, 1.0, 0.1])
    assert p.fields(step=34, epoch=5, lr=0.25)["loss"] == 0.75
    assert p.fields(step=34, epoch=5, lr=0.25)["loss"] == 0.0  # nothing was trained since
    assert LONGEST_SILENCE == 60.0


def test_numbers_are_rounded_and_each_ranks_own_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [50.0]
    monkeypatch.setattr("trainer.logs.time.perf_counter", lambda: now[0])
    p = progress(flops=10**12)
    p = Progress(p.config, p.plan, dataclasses.replace(p.ranks, world_size=3), flops=10**12)
    p.add(7.0, 7.0, [1.0, 3.0, 0.7, 2.0, 4.0, 1.4, 0.0, 0.0, 0.0])
    p.data_seconds += 0.1
    now[0] += 3.0
    line = p.fields(step=7, epoch=1, lr=0.1)
    assert (line["img_s"], line["step_ms"], line["data_ms"]) == (33.3, 428.57, 14.286)
    assert (line["tflops"], line["eta_s"]) == (33.3333, 3)
    assert line["ranks"] == {
        "loss": [0.333333, 0.5, 0.0],
        "img_s": [14.3, 19.0, 0.0],
        "work_ms": [100.0, 200.0, 0.0],
        "slow": {},
    }
    assert not p.due(8)
    p.slow.ratios, p.slow_changed = {2: 1.6}, True
    assert p.due(8)  # so that the line names it at once
    line = p.fields(step=8, epoch=1, lr=0.1)
    assert "slow: rank 2 (1.6 times the median)" in train_line(line, p.plan)
    assert line["ranks"]["slow"] == {"2": 1.6} and not p.due(9)
    monkeypatch.setattr("trainer.logs.peak_tflops", lambda device: 10.0)
    assert p._utilization(7 / 3) == {"tflops": 2.3333, "mfu": 0.0778}  # of three GPUs


def test_utilization_is_the_share_of_a_known_gpus_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda", 0)
    for name, peak in (  # of dense bf16 products, as NVIDIA publishes them
        ("NVIDIA B200", 2250.0), ("NVIDIA H200", 989.0), ("NVIDIA H100 80GB HBM3", 989.0),
        ("NVIDIA A100-SXM4-80GB", 312.0), ("NVIDIA L40S", 362.0), ("Other", None),
        ("NVIDIA GeForce RTX 4090", 165.0), ("NVIDIA GeForce RTX 3090", 71.0),
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, name=name: name)
        assert peak_tflops(gpu) == peak
    assert peak_tflops(torch.device("cpu")) is None
    monkeypatch.setattr("trainer.logs.peak_tflops", lambda device: 312.0)
    p = progress(flops=10**12)
    assert p._utilization(78.0) == {"tflops": 78.0, "mfu": 0.25}
    assert progress()._utilization(78.0) == {}


def test_the_gradient_norm_is_that_of_the_whole_batch(tmp_path: Path) -> None:
    one = Job(tmp_path / "one", "--bn", "frozen", "--print-every", "3").done()
    two = Job(tmp_path / "two", "--bn", "frozen", "--print-every", "3", count=2).done()
    t = make(None, "--bn", "frozen")
    images = train_batches(t)
    for _ in range(2):
        train.train_step(t, images)
    t.net.model.train()
    train.backward(t, images)
    norm = float(torch.cat([p.grad.reshape(-1) for p in t.net.parameters]).norm())
    for job in (one, two):
        assert job.metrics("train")[0]["grad_norm"] == pytest.approx(norm, rel=1e-4)


def train_batches(t: Training) -> Any:
    return batches(t, epoch_order(0, 0, 100))


def test_a_log_line_shows_the_fields_of_its_entry() -> None:
    plan = make().plan
    fields = {"epoch": 2, "step": 9, "loss": 0.12345, "lr": 0.05, "grad_norm": 1.234, "img_s": 90.0}
    fields |= {"step_ms": 200.0, "data_ms": 10.0, "mem_mb": 77, "eta_s": 3723, "mfu": 0.401}
    assert train_line(fields, plan) == (
        "epoch 2/2  step 9/14  loss 0.1235  lr 0.05  grad norm 1.23  90 img/s (90 per rank)  "
        "mfu 40.1%  data 5%  mem 77 MB  eta 1:02:03"
    )
    fields = {"epoch": 2, "split": "val", "top1": 0.5, "correct1": 3, "n": 6, "top5": 1.0}
    fields |= {"loss": 0.25, "tta_top1": 2 / 3, "metrics": {"auc": 0.75}}
    assert eval_line(fields) == (
        "epoch 2  val: top-1 50.00% (3 of 6)  top-5 100.00%  with mirror images 66.67%  "
        "loss 0.2500  auc 0.7500"
    )


def test_the_network_without_ddpctl_loads_the_export(tmp_path: Path) -> None:
    job = Job(tmp_path / "run", count=2).done()
    exported = torch.load(job.out / "epoch_2.pth")
    assert not any(name.startswith("module.") for name in exported)
    make().net.model.load_state_dict(exported, strict=True)
    assert same(exported, newest_state(job.out)["model"])


def test_a_log_that_was_started_is_there_and_the_end_of_an_earlier_run_is_not(
    tmp_path: Path,
) -> None:
    out = tmp_path / "a" / "b"
    log = Log(out)
    log.start(None)
    assert (out / "metrics.jsonl").read_text() == ""
    log.write("train", step=1, loss=math.nan)
    (out / "status.json").write_text("{}")
    Log(out).start(1)
    assert json.loads((out / "metrics.jsonl").read_text())["loss"] is None
    assert not (out / "status.json").exists()
    Log(out).start(None)
    assert sorted(path.name for path in out.iterdir()) == ["earlier-metrics.jsonl", "metrics.jsonl"]
    silent = Log(None)
    silent.start(None)
    silent.write("train", step=1)  # a rank that writes nothing


def test_truncating_keeps_the_entries_before_the_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    kinds = [("start", 0), ("train", 5), ("eval", 3), ("train", 9), ("end", 5), ("train", 5)]
    kinds += [("start", 9), ("eval", 9)]
    lines = [json.dumps({"kind": kind, "step": step}) + "\n" for kind, step in kinds]
    file.write_text("".join(lines) + "no json\n{}\n" + '{"kind": "train", "st')  # torn by a kill
    truncate(file, 5, {})
    assert file.read_text() == "".join(lines[:3] + lines[5:7])
    truncate(tmp_path / "none.jsonl", 5, {})


@pytest.mark.parametrize(
    ("last", "kept"),
    [
        ({}, []),
        ({"step": 2, "split": "test"}, []),
        ({"step": 5, "split": "val"}, ["val"]),
        ({"step": 5, "split": "test"}, ["val", "test"]),
    ],
)
def test_evaluations_that_the_checkpoint_does_not_know_are_dropped(
    tmp_path: Path, last: dict[str, Any], kept: list[str]
) -> None:
    file = tmp_path / "metrics.jsonl"
    lines = [{"kind": "eval", "step": 5, "split": split} for split in ("val", "test")]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    truncate(file, 5, last)
    assert [json.loads(line)["split"] for line in file.read_text().splitlines()] == kept


def test_a_full_disk_delays_lines_and_ends_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = Log(tmp_path)
    log.start(None)
    log.write("train", step=1)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with no_more_than(len(before) + 20):  # the kernel's own refusal, in the middle of a line
        for step in (2, 3):
            log.write("train", step=step)
        assert (tmp_path / "metrics.jsonl").read_bytes() == before
    log.write("train", step=4)
    assert [line["step"] for line in metrics(tmp_path)] == [1, 2, 3, 4]
    warnings = capsys.readouterr().out.splitlines()
    assert len(warnings) == 1 and "metrics.jsonl: File too large" in warnings[0]


def test_a_full_disk_at_the_end_is_a_warning_and_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    t = make(None, "--out", str(tmp_path))
    with no_more_than(10):
        finish(t, "completed", "")
    assert "WARNING: cannot write" in (said := capsys.readouterr().out)
    assert "status.json: File too large" in said and "completed at step 0" in said


@contextlib.contextmanager
def no_more_than(size: int) -> Iterator[None]:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)


def test_a_tracker_gets_every_line_and_its_failure_ends_no_run(tmp_path: Path) -> None:
    flags = ("--report-to", "own_parts:tracker", "--synthetic-size", "17")
    job = Job(tmp_path / "run", *flags, count=2).done()
    told = [json.loads(line) for line in (tmp_path / "tracked").read_text().splitlines()]
    written = {(m["kind"], m["step"]): m for m in metrics(job.out)}
    assert {(m["kind"], m["step"]): m for m in told} == written
    assert job.log().count("WARNING: --report-to: OSError: out of reach") == 1


TRACKER = """
import atexit, os, sys

def note(text):
    with open("noted", "a") as file:
        file.write(f"{text} {os.environ['RANK']}\\n")

def exit(code):
    global given
    given = code
    real(code)

def end():
    note(f"ends with {given} on")

note("starts on")
real, sys.exit = sys.exit, exit
atexit.register(end)
log = dict
"""


def test_a_tracker_starts_on_rank_0_alone_and_ends_with_the_exit_code(tmp_path: Path) -> None:
    """As W&B does: it starts with its module, and sends what is left when Python exits."""
    (tmp_path / "mine.py").write_text(TRACKER)
    flags = [*TINY, "--report-to", "mine:log", "--max-steps", "2"]
    for more, code in (((), 0), (("--lr", "1e38", "--warmup-epochs", "0"), 5)):
        done = torchrun(2, ["-m", "trainer", *flags, *more], tmp_path, PYTHONPATH=str(ROOT))
        assert done.returncode == code, done.stderr
        noted = (tmp_path / "noted").read_text().splitlines()
        assert noted == ["starts on 0", f"ends with {code} on 0"]
        (tmp_path / "noted").unlink()


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
