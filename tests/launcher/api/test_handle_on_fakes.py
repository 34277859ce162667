"""`launch` and `Run` on fake hosts."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from builders import run_record
from fakes import FakeCluster, FakeNode

import launcher
from launcher.api import handle
from launcher.api.call import read_outcomes
from launcher.api.handle import JobOptions, LoggingConsole, Run
from launcher.engines.node_handle import AttemptHandle
from launcher.follow.detach import ensure_recorder
from launcher.hosts import load
from launcher.hosts.schema import JOB
from launcher.outcomes import RunState
from launcher.own_folders import locked
from launcher.runs.attempt_lock import is_taken_care_of
from launcher.runs.run_folder import RunFolder
from launcher.start import recorder
from launcher.start.run_attempt import Starter

Make = Callable[..., FakeCluster]


@pytest.fixture(autouse=True)
def recorders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorders are threads of this process, in which the hosts are fakes."""
    monkeypatch.setattr("launcher.start.restart.PAUSES_BY_LAUNCHER", (0.0, 0.0, 0.0))

    def ensure(folder: RunFolder, state: RunState) -> None:
        if is_taken_care_of(folder):
            return
        lock = folder.attempt_lock(folder.load().attempt.number)
        began = threading.Event()

        def record() -> None:
            with locked(lock):
                began.set()
                recorder.record_run(folder, LoggingConsole())

        threading.Thread(target=record, daemon=True).start()
        assert began.wait(10)

    monkeypatch.setattr(handle, "ensure_recorder", ensure)


def rank_1_is_killed(node: FakeNode) -> None:
    if node.node_rank == 1:
        node.event("rank_exit", rank=1, local_rank=0, pid=7, exit_code=-9, signal="SIGKILL")
        node.end(1, reason={"kind": "rank", "message": "rank 1 was killed", "node_rank": 1})
    else:
        node.stop()


def launched(cluster: FakeCluster, **more: object) -> launcher.Run:
    return launcher.launch(cluster.hosts_file, check=False, push=False, **more)  # type: ignore[arg-type]


def test_ctrl_c_while_a_launch_starts_its_nodes_stops_the_run(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster()
    record_start = Starter.record_start

    def interrupt(*args: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return record_start(*args)

    monkeypatch.setattr(Starter, "record_start", interrupt)
    with pytest.raises(KeyboardInterrupt):
        launched(cluster)
    assert cluster.nodes == []
    assert cluster.record["state"] == "CANCELLED"


def test_a_run_waits_for_its_gpus_and_takes_any_free_hosts(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.start.waiting_line.POLL", 0.05)
    monkeypatch.setattr("launcher.start.waiting_line.TICK", 0.01)
    monkeypatch.setattr(recorder, "report_ready", lambda: None)
    cluster = fake_cluster("gpu0", "gpu1", "gpu2", gpus=1, master_port="auto")
    first = launched(cluster, nodes=2)
    assert [node.node_rank for node in cluster.nodes] == [0, 1]
    second = launched(cluster, nodes=2, wait=0)
    assert second.state == "WAITING"
    second.kill()
    assert second.wait() == "CANCELLED"
    assert {node.run_id for node in cluster.nodes} == {first.id}


@pytest.mark.slow
def test_a_run_is_followed_through_a_restart_to_its_end(
    fake_cluster: Make, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="ddpctl")
    cluster = fake_cluster(max_restarts=1)
    run = launched(cluster, name="py")
    assert run.state == "RUNNING" and run.id.startswith("py-") and cluster.recorders == [run.id]
    for host in cluster:
        host.on_start = lambda node: (node.say("again", node.node_rank), node.end(0))
    with pytest.raises(TimeoutError, match=rf"{run.id} has not ended after 0.01 s"):
        run.wait(timeout=0.01)
    lines = run.logs(follow=True, rank="0-1")
    cluster.nodes[1].say("first \x1b]0;title\x07\x1b[31mred", 1)
    assert next(lines) == "[gpu1:1] first \x1b[31mred"
    for node in cluster.nodes:
        rank_1_is_killed(node)
    assert run.wait(timeout=60) == "SUCCEEDED"
    assert sorted(lines) == ["[gpu0:0] again", "[gpu1:1] again"]
    assert [attempt["state"] for attempt in cluster.record["attempts"]] == ["FAILED", "SUCCEEDED"]
    assert run.first_failure is None
    assert list(run.logs(rank=1, grep="ag")) == ["[gpu1:1] again"]
    assert capfd.readouterr() == ("", "")
    assert "started: 2 nodes" in caplog.text
    assert repr(launcher.find_run(run.id[:-2])) == f"<ddpctl.Run {run.id} SUCCEEDED>"


def test_lines_are_followed_to_the_end_of_a_run_that_has_no_recorder_here(
    fake_cluster: Make,
) -> None:
    cluster = fake_cluster()
    run = launched(cluster)
    cluster.nodes[0].say("before", 0)
    lines = run.logs(follow=True, tail=1)
    assert next(lines) == "[gpu0:0] before"
    cluster.nodes[1].say("after", 1)
    assert next(lines) == "[gpu1:1] after"
    for node in cluster.nodes:
        node.end(0)
    assert list(lines) == []
    assert run.state == "SUCCEEDED"


@pytest.mark.parametrize("hosts", [["gpu0"], ["gpu0", "gpu1"], "gpu0,gpu1", Path("hosts.yaml")])
def test_a_run_of_another_machine_is_found_by_a_file_or_a_list_of_hosts(
    fake_cluster: Make, hosts: Path | str | list[str]
) -> None:
    cluster = fake_cluster(*(hosts if isinstance(hosts, list) else ["gpu0", "gpu1"]))
    run = launched(cluster)
    cluster.forget()
    assert launcher.find_run(hosts=hosts).id == run.id


def test_if_no_recorder_starts_for_a_waiting_run_wait_says_that_it_waits_no_longer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Run, "state", RunState.WAITING)
    monkeypatch.setattr(handle, "ensure_recorder", ensure_recorder)
    with pytest.raises(launcher.DdpctlError, match="r1: the run is no longer waiting in line"):
        Run(RunFolder(tmp_path / "gone" / "r1")).wait()


def test_a_failure_is_a_value(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    for host in cluster:
        host.on_start = rank_1_is_killed
    run = launched(cluster)
    assert run.wait(timeout=60) == "FAILED"
    assert run.first_failure is not None
    assert (run.first_failure.host, run.first_failure.rank) == ("gpu1", 1)


def test_kill_proves_it_or_raises(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    run = launched(cluster)
    cluster.hosts["gpu1"].reachable = False
    with pytest.raises(launcher.DdpctlError, match="stop not confirmed on gpu1; call kill"):
        run.kill()
    cluster.hosts["gpu1"].reachable = True
    run.kill()
    assert run.state == "CANCELLED" and cluster.nodes == []


def test_fetch_copies_from_hosts_that_answer_and_raises_for_the_others(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    cluster.nodes_end(exit_code=0)
    run = launched(cluster)
    run.wait(timeout=60)
    [output] = cluster.hosts["gpu0"].home.glob(".ddpctl/runs/*/output")
    (output / "result.txt").write_text("42")
    assert (run.fetch() / "output" / "result.txt").read_text() == "42"
    cluster.hosts["gpu1"].reachable = False
    with pytest.raises(launcher.DdpctlError, match="gpu1: no answer"):
        run.fetch("other")
    assert Path("other/output/result.txt").exists()


def test_fetch_raises_if_a_file_is_not_the_one_that_its_host_listed(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    cluster.nodes_end(exit_code=0)
    run = launched(cluster)
    run.wait(timeout=60)
    [output] = cluster.hosts["gpu0"].home.glob(".ddpctl/runs/*/output")
    for name in ("damaged", "good"):
        (output / name).write_text("42")
    cluster.hosts["gpu0"].install(
        "tail", '#!/bin/sh\ncase $* in *damaged*) printf 43 ;; *) exec /usr/bin/tail "$@" ;; esac\n'
    )
    with pytest.raises(launcher.DdpctlError, match="gpu0: output/damaged changed while"):
        run.fetch("got")
    assert [path.name for path in Path("got/output").iterdir()] == ["good"]


def test_lines_that_are_here_come_before_the_error_of_a_host_that_is_not(
    fake_cluster: Make,
) -> None:
    cluster = fake_cluster()
    for host in cluster:
        host.on_start = lambda node: (node.say("kept", node.node_rank), node.end(0))
    run = launched(cluster)
    run.wait(timeout=60)
    cluster.hosts["gpu1"].reachable = False
    lines = run.logs()
    assert {next(lines), next(lines)} == {"[gpu0:0] kept", "[gpu1:1] kept"}
    with pytest.raises(launcher.DdpctlError, match="gpu1: no answer"):
        next(lines)


def test_hosts_are_a_file_a_list_or_a_value(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    how = {"check": False, "push": False, "image": "any:1", "master_port": 29501}
    value = load(cluster.hosts_file)
    for hosts in (Path(cluster.hosts_file), ["gpu0:0", "gpu1:0"], "gpu0:0,gpu1:0", value, None):
        run = launcher.launch(hosts, ["other.py", "1"], **how)  # type: ignore[arg-type]
        record = RunFolder(cluster.state / "ddpctl" / "runs" / run.id).load()
        assert (record.hosts, record.command) == (["gpu0", "gpu1"], ["other.py", "1"])
        run.kill()


def test_a_wrong_keyword_is_named_as_python_and_the_hosts_file_name_it(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    with pytest.raises(TypeError, match=r"launch\(\) got an unexpected keyword argument 'imge'"):
        launched(cluster, imge="any:1")
    with pytest.raises(launcher.DdpctlError, match=r"launch\(\): shm_size: found big"):
        launched(cluster, shm_size="big")
    with pytest.raises(
        launcher.DdpctlError, match=r"launch\(\): COMMAND: .*write \[train.py\]|command: "
    ):
        launched(cluster, command="train.py")


def test_every_key_of_a_job_is_a_keyword() -> None:
    assert set(get_type_hints(JobOptions)) == set(JOB) - {"command"}


def test_another_thread_than_the_main_one_sets_no_signal_handler(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    cluster.nodes_end(exit_code=0)
    before = signal.getsignal(signal.SIGINT)
    states: list[str] = []
    thread = threading.Thread(target=lambda: states.append(launched(cluster).wait(timeout=60)))
    thread.start()
    thread.join()
    assert states == ["SUCCEEDED"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_live_recorder_is_recognized_by_its_lock(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "r")
    folder.save(run_record(run_id="r"))
    assert not is_taken_care_of(folder)
    with locked(folder.attempt_lock(1)):
        assert is_taken_care_of(folder)
    assert not is_taken_care_of(folder)


@pytest.mark.real
def test_the_package_imports_nothing_until_it_is_used() -> None:
    code = (
        "import sys, launcher; assert 'paramiko' not in sys.modules and 'launch' in dir(launcher);"
        "assert callable(launcher.run); assert not hasattr(launcher, 'lunch'); print(len(launcher.__all__))"
    )
    root = Path(__file__).parents[3]
    env = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout.strip() == str(len(launcher.__all__)), done.stderr


def nothing() -> None:
    pass


def test_a_run_whose_host_died_raises_that_and_not_what_other_ranks_raised(
    fake_cluster: Make,
) -> None:
    cluster = fake_cluster()

    def dies(_: FakeNode) -> None:
        cluster.hosts["gpu1"].reachable = False
        first, lost = cluster.nodes[0], {"kind": "host-lost", "node_rank": 1, "message": "silent"}
        results = first.journal.parents[3] / "output/results/attempt-1/node-0"
        results.mkdir(parents=True)
        effect = {"type": "RuntimeError", "message": "closed by peer", "traceback": ""}
        (results / "rank-0").write_text(json.dumps({"error": effect}))
        first.event("stopping", reason=lost)
        first.end(1, reason=lost)

    cluster.hosts["gpu1"].on_start = dies
    with pytest.raises(launcher.RunFailed, match=r"gpu1 \(node 1\): the host is lost"):
        launcher.run(nothing, hosts=cluster.hosts_file, check=False)


def test_a_host_that_does_not_send_its_results_is_named(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster()
    cluster.nodes_end(exit_code=0)

    def read(attempt: AttemptHandle) -> Any:
        cluster.hosts["gpu1"].reachable = False
        return read_outcomes(attempt)

    monkeypatch.setattr("launcher.api.call.read_outcomes", read)
    with pytest.raises(launcher.DdpctlError, match="gpu1: no answer"):
        launcher.run(nothing, hosts=cluster.hosts_file, check=False)
