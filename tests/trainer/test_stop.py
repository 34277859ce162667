"""A signal to any one rank saves the same step everywhere; resuming loses nothing."""

from __future__ import annotations

import concurrent.futures
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from trainer_ranks import Job, make, metrics, newest_state, same

from trainer import checkpoint
from trainer.errors import CheckpointError
from trainer.poll import ECHO, StopRequest
from trainer.state import to_checkpoint

LONG = ("--epochs", "40")  # 280 steps: never over before the signal comes


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_sigterm_to_one_rank_stops_all_at_the_same_step(tmp_path: Path, rank: int) -> None:
    job = Job(tmp_path / "run", *LONG, "--global-batch", "15", count=3)
    job.wait_for("train", step=4)
    job.signal(rank)
    assert job.codes(timeout=20) == [75, 75, 75]
    status = job.status
    assert status["state"] == "preempted"
    assert status["reason"] == f"SIGTERM on rank {rank}"
    assert status["checkpoint"] == f"ckpt/step-{status['step']:08d}"
    saved = checkpoint.verify(tmp_path / "run" / status["checkpoint"])
    assert saved.step == job.metrics("train")[-1]["step"] >= 4
    assert metrics(tmp_path / "run")[-1]["state"] == "preempted"


def test_a_stopped_run_resumes_to_the_very_same_weights(tmp_path: Path) -> None:
    flags = ("--epochs", "6", "--grad-accum-steps", "2")
    whole = Job(tmp_path / "whole", *flags, count=2).done()
    part = Job(tmp_path / "part", *flags, count=2)
    part.wait_for("train", step=9)
    part.signal(1, signal.SIGUSR1)
    assert part.codes() == [75, 75]
    again = Job(tmp_path / "part", *flags, "--resume", "auto", count=2).done()
    assert same(newest_state(whole.out), newest_state(again.out))
    assert [m["step"] for m in again.metrics("train")] == list(range(1, 43))

    def numbers(job: Job) -> list[object]:
        return [(m["step"], m["correct1"], m["loss"]) for m in job.metrics("eval")]

    assert numbers(again) == numbers(whole)


def test_a_signal_during_evaluation_saves_and_evaluates_again_on_resume(tmp_path: Path) -> None:
    flags = ("--epochs", "1", "--eval-batch-size", "1", "--synthetic-test", "3000")
    job = Job(tmp_path / "run", *flags, count=2)
    job.wait_for("train", step=7)  # the last step: 3,000 blocks of evaluation follow
    job.signal(1)
    assert job.codes() == [75, 75]
    assert not job.metrics("eval")
    meta = json.loads((tmp_path / "run" / job.status["checkpoint"] / "meta.json").read_text())
    assert (meta["step"], meta["eval_pending"]) == (7, True)
    again = Job(tmp_path / "run", *flags, "--resume", "auto", count=2).done()
    (evaluation,) = again.metrics("eval")
    assert (evaluation["step"], evaluation["n"]) == (7, 3000)
    assert len(again.metrics("train")) == 7
    assert (tmp_path / "run" / "epoch_1.pth").is_file()


def test_the_echo_of_a_signal_does_not_kill(tmp_path: Path) -> None:
    job = Job(tmp_path / "run", *LONG, count=2)
    job.wait_for("train", step=2)
    for _ in range(3):
        for rank in (0, 1):  # a terminal signals all, and torchrun signals all again
            if job.processes[rank].exitcode is None:
                job.signal(rank, signal.SIGINT)
    assert job.codes() == [75, 75]
    assert job.status["state"] == "preempted"


def test_a_second_signal_ends_at_once() -> None:
    child = os.fork()
    if child == 0:
        stop = StopRequest()
        stop.listen()
        os.kill(os.getpid(), signal.SIGTERM)
        if not stop:
            os._exit(1)
        stop.since -= ECHO + 1  # as if that had been a while ago
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 143


def test_a_run_out_of_time_is_stopped_like_one_with_a_signal(tmp_path: Path) -> None:
    job = Job(tmp_path / "run", *LONG, "--max-time", "1s", count=2)
    assert job.codes() == [75, 75]
    assert job.status["state"] == "preempted" and "--max-time on rank" in job.status["reason"]
    assert checkpoint.verify(tmp_path / "run" / job.status["checkpoint"])


def test_time_is_up_after_the_seconds_and_never_before_or_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr("trainer.poll.time.monotonic", lambda: now[0])
    limited, endless = StopRequest(30), StopRequest()
    now[0] = 129.9
    assert not limited and not endless
    now[0] = 130.1
    assert limited and not endless and limited.name == "--max-time"
    limited._note(signal.SIGTERM, None)  # the first signal does not end the process
    assert limited.name == "SIGTERM"


def test_a_checkpoint_is_due_every_so_many_seconds_or_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]
    monkeypatch.setattr("trainer.saver.time.monotonic", lambda: now[0])
    saver = make().saver
    meta = {"step": 0, "eval_pending": False}
    saver.writer.submit = lambda job, then: None  # type: ignore[method-assign]
    due = []
    for step in range(1, 200):  # two seconds each: saved at 60, 120, ... seconds
        now[0] += 2
        if saver.due(step, (60, "s")):
            due.append(step)
            saver.save({}, meta | {"step": step}, lambda written: None)
    assert due == [30, 60, 90, 120, 150, 180]
    assert [step for step in range(195, 205) if saver.due(step, (20, "st"))] == [
        200, 201, 202, 203, 204
    ]  # fmt: skip
    assert not any(saver.due(10_000, every) for every in ((1, "ep"), (5, "ep"), (0, "st")))
    fresh = make().saver
    assert [step for step in range(1, 6) if fresh.due(step, (3, "st"))] == [3, 4, 5]
    assert fresh.due(1, (1, "st")) and not fresh.due(0, (1, "st"))


def test_what_is_written_is_noted_at_once_and_a_failure_when_all_ranks_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = make(None, "--out", str(tmp_path))
    written: list[Any] = []

    def save() -> None:
        t.saver.save(*to_checkpoint(t), written.append)
        concurrent.futures.wait([job for job, _ in t.saver.writer._jobs])

    save()
    assert (t.saver.step, t.saver.newest, written) == (0, None, [])
    t.saver.collect()
    assert t.saver.newest == "ckpt/step-00000000"
    assert [saved.path.name for saved, _ in written] == ["step-00000000"]

    def full(*args: object) -> None:
        raise CheckpointError("the disk is full")

    monkeypatch.setattr("trainer.checkpoint.save", full)
    save()
    t.saver.collect()  # would end this rank alone
    assert t.saver.writer.failed and len(written) == 1
    with pytest.raises(CheckpointError, match="the disk is full"):
        t.saver.finish()


def test_a_checkpoint_that_is_due_at_an_epochs_end_is_saved_after_evaluating(
    tmp_path: Path,
) -> None:
    """Even if each epoch is a single step, whose end is always an epoch's end."""
    flags = ("--synthetic-train", "16", "--epochs", "5", "--save-every", "2st")
    job = Job(tmp_path / "run", *flags).done()
    kinds = [
        (m["kind"], m["step"]) for m in metrics(job.out) if m["kind"] in ("eval", "checkpoint")
    ]
    assert [step for kind, step in kinds if kind == "checkpoint"] == [2, 4, 5]
    assert kinds.index(("eval", 2)) < kinds.index(("checkpoint", 2))


def test_under_torchrun_an_orderly_stop_is_exit_code_0(tmp_path: Path) -> None:
    job = Job(tmp_path / "run", *LONG, count=2, env=lambda rank: {"TORCHELASTIC_RUN_ID": "x"})
    job.wait_for("train", step=2)
    job.signal(1)
    assert job.codes() == [0, 0]
    assert job.status["state"] == "preempted"


@pytest.mark.parametrize(
    ("every", "steps"), [("3st", [3, 6, 9, 12, 14]), ("2ep", [14]), ("0", [14])]
)
def test_save_every(tmp_path: Path, every: str, steps: list[int]) -> None:
    job = Job(tmp_path / "run", "--save-every", every, "--keep", "9", count=2).done()
    assert [m["step"] for m in job.metrics("checkpoint")] == steps
    assert [p.name for p in checkpoint.folders(tmp_path / "run")][::-1] == [
        f"step-{step:08d}" for step in steps
    ]
