"""The recorder on fake hosts: it follows a detached run to its end and records it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from fakes import FakeCluster

from launcher.logs.store import LogStore
from launcher.outcomes import RunState
from launcher.own_folders import locked
from launcher.runs.run_folder import run_folder
from launcher.start import attach, recorder

Make = Callable[..., FakeCluster]


@pytest.mark.slow
@pytest.mark.parametrize("copied_meanwhile", [False, True])
def test_a_detached_run_is_recorded_to_its_end(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch, copied_meanwhile: bool
) -> None:
    cluster = fake_cluster()
    code, out, err = cluster.launch("--detach")
    assert code == 0, err
    run_id = out.strip()
    assert cluster.recorders == [run_id]
    assert cluster.record["state"] == "RUNNING"
    for node in cluster.nodes:
        node.say("loss 0.1", node.node_rank)
        node.end(0)
    folder = cluster.state / "ddpctl" / "runs" / run_id
    monkeypatch.setattr(sys, "argv", ["recorder", str(folder)])
    monkeypatch.setattr(recorder, "report_ready", lambda: None)
    if copied_meanwhile:  # by `ddpctl logs`
        store = LogStore.acquire(folder / "logs", pytest.fail)
        assert store
        threading.Timer(1.0, store.close).start()
    assert recorder.main() == 0
    assert cluster.record["state"] == "SUCCEEDED"
    assert b"loss 0.1" in (folder / "logs" / "node-1.log").read_bytes()


@pytest.mark.slow
def test_it_does_not_wait_for_a_start_during_which_the_launch_has_died(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster("gpu0")
    folder = run_folder(cluster.launch("--detach")[1].strip())
    cluster.nodes[0].end(0)
    pending = folder.load()
    pending.attempt.state, pending.attempt.started = RunState.PENDING, None
    folder.save(pending)

    def wait(_: float) -> None:
        pytest.fail("it waits for itself")

    monkeypatch.setattr(attach, "time", SimpleNamespace(sleep=wait))
    monkeypatch.setattr(sys, "argv", ["recorder", str(folder.path)])
    monkeypatch.setattr(recorder, "report_ready", lambda: None)
    with locked(folder.attempt_lock(1)):  # which it has inherited
        assert recorder.main() == 0
    assert folder.load().state is RunState.SUCCEEDED


def test_it_takes_care_of_the_run_even_if_the_command_that_started_it_has_died(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        recorder.report_ready()
        os.write(writer, b"what it prints later goes nowhere")
