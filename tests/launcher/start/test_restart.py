"""Which failures are worth another attempt."""

from __future__ import annotations

import dataclasses
import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.failure import FirstFailure
from launcher.hosts import Cluster, Host, Job
from launcher.outcomes import RunState
from launcher.runs.record import BY_LAUNCHER, IN_PLACE, AttemptRecord, RestartRecord, RunRecord
from launcher.runs.run_folder import RunFolder
from launcher.ssh.host_connection import HostConnection
from launcher.start.restart import NEW_CHECKPOINT, has_saved
from launcher.start.resume import on_other_hosts
from launcher.terminal.console import Console


def record(kind: str, *restarts: tuple[str, bool], by: str = "launch") -> RunRecord:
    """A run of two attempts. The last has failed. restarts: (kind of failure, saved), before it."""
    failure = FirstFailure("a", 0, None, None, 1, None, kind, "", "", "", "")
    attempts = []
    for number, started_by in enumerate(("launch", by), 1):
        made = AttemptRecord(number, RunState.FAILED, "", [], 2, "a", 1, by=started_by)
        made.first_failure = failure
        attempts.append(made)
    for cause, saved in restarts:
        past = RestartRecord("", BY_LAUNCHER, cause, "a", 0, None, "", saved)
        attempts[0].restarts.append(past)
    return RunRecord("r", "", "", "docker", [], "", None, None, None, [], 1, attempts)


@pytest.mark.parametrize("kind", ["host-lost", "killed", "hung", "gpu-failed", "cuda-oom"])
def test_failures_that_a_restart_may_fix_are_restarted(kind: str) -> None:
    assert record(kind).why_not_restarted(3, saved=True) == ""


@pytest.mark.parametrize("kind", ["usage", "file-missing", "exception", "unknown"])
def test_permanent_failures_are_not_restarted(kind: str) -> None:
    assert kind in record(kind).why_not_restarted(3, saved=True)


def test_restarts_in_place_and_by_the_launcher_share_one_limit() -> None:
    run = record("host-lost", ("killed", True), ("host-lost", True), by="restart")
    run.attempts[0].restarts[0] = dataclasses.replace(run.restarts[0], kind=IN_PLACE)
    assert run.why_not_restarted(3, saved=True) == ""
    assert "2 of 2" in run.why_not_restarted(2, saved=True)


def test_a_resume_by_hand_begins_the_count_anew() -> None:
    used_up = [("killed", True)] * 3
    assert record("killed", *used_up, by="restart").why_not_restarted(3, saved=True)
    assert record("killed", *used_up, by="resume").why_not_restarted(3, saved=True) == ""


@pytest.mark.parametrize(("saver", "asked"), [("a", "a"), ("b", "ab"), ("", "ab")])
def test_a_lost_host_is_asked_for_new_checkpoints_only_if_no_other_host_has_one(
    saver: str, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    class AskedHost:
        def __init__(self, name: str) -> None:
            self.name = name

        def script(self, *_: str) -> Any:
            calls.append(self.name)
            return SimpleNamespace(code=0, stdout="step-1" if self.name == saver else "")

    nodes = [AskedHost("b"), AskedHost("a")]
    place = SimpleNamespace(place=SimpleNamespace(run_dir="", control_dir=""))
    attempt = SimpleNamespace(connections=nodes, by_connection=dict.fromkeys(nodes, place))
    monkeypatch.setattr("launcher.start.restart.newest_attempt", lambda *_: nullcontext(attempt))
    run = dataclasses.replace(record("host-lost"), pending_stop=["b"])
    assert has_saved(RunFolder(Path("r")), run, Console()) is bool(saver)
    assert "".join(calls) == asked


@pytest.mark.parametrize(("saved_at", "is_new"), [(2, False), (8, True), (20, True)])
def test_a_checkpoint_counts_as_new_if_it_was_saved_after_the_last_start(
    tmp_path: Path, saved_at: int, is_new: bool
) -> None:
    """It may have been saved before the supervisor prepared a process for the next restart."""
    checkpoint = tmp_path / "checkpoints" / "model.pt"
    rounds = [tmp_path / "ranks" / number for number in ("0", "1")]
    started = rounds[0] / "none_x"  # as torchrun does
    for folder in (started, rounds[1], checkpoint.parent):
        folder.mkdir(parents=True)
    checkpoint.touch()
    for path, time in ((started, 5), (rounds[0], 5), (rounds[1], 15), (checkpoint, saved_at)):
        os.utime(path, (time, time))
    found = HostConnection(Host("local")).script(NEW_CHECKPOINT, str(tmp_path), str(tmp_path))
    assert bool(found.stdout) is is_new


HERE = Host("local", gpus=0)


def test_on_other_hosts_the_job_is_the_runs_own_but_for_what_the_file_says() -> None:
    run = Job(command=("train.py", "--lr", "1"), image="mine:1", env={"A": "1"}, max_restarts=2)
    other = Job(image="other:2", nproc_per_node=4, command=("else.py",))
    job = on_other_hosts(Cluster((HERE,), run), Cluster((HERE, HERE), other), Console()).job
    assert (job.image, job.nproc_per_node, job.max_restarts) == ("other:2", 4, 2)
    assert (job.command, dict(job.env)) == (("train.py", "--lr", "1"), {"A": "1"})
