"""Restarts on fake hosts: when the job starts again, where, and when it does not."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import FakeCluster, FakeNode

from launcher.errors import PreflightError
from launcher.follow.ctrl_c import Interrupts
from launcher.follow.hooks import EventHook
from launcher.follow.session import Session
from launcher.hosts import Cluster, Host
from launcher.logs.query import LogFilter
from launcher.look import logs
from launcher.outcomes import Outcome, RunState
from launcher.own_folders import locked
from launcher.plan.launch_options import LaunchOptions
from launcher.runs import newest_attempt
from launcher.runs.attempt_lock import is_taken_care_of
from launcher.runs.record import RunRecord
from launcher.runs.run_folder import RunFolder, run_folder, run_folders
from launcher.start import attach, launch, recorder, restart
from launcher.start.replace_hosts import Problems, unusable_hosts
from launcher.start.restart import restart_until_done, turn_kept_for_restart
from launcher.terminal.console import Console

pytestmark = pytest.mark.slow  # most of these tests start several runs
Make = Callable[..., FakeCluster]


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.start.restart.PAUSES_BY_LAUNCHER", (0.0, 0.0, 0.0))


def rank_is_killed(node: FakeNode) -> None:
    if node.node_rank == 1:
        node.event("rank_exit", rank=1, local_rank=0, pid=7, exit_code=-9, signal="SIGKILL")
        node.end(1, reason={"kind": "rank", "message": "rank 1 was killed", "node_rank": 1})
    else:
        node.stop()


def raises_an_exception(node: FakeNode) -> None:
    node.event("rank_exit", rank=node.node_rank, local_rank=0, pid=7, exit_code=1)
    node.end(1, reason={"kind": "rank", "message": "rank failed", "node_rank": 0})


def first_fails_then_succeeds(fail: Callable[[FakeNode], None]) -> Callable[[FakeNode], None]:
    def start(node: FakeNode) -> None:
        if node.attempt == 1:
            fail(node)
        else:
            node.end(0)

    return start


killed_once = first_fails_then_succeeds(rank_is_killed)


def with_nodes_that(start: Callable[[FakeNode], None], cluster: FakeCluster) -> FakeCluster:
    """Return the cluster. On all its hosts, `start` decides what a node does."""
    for host in cluster:
        host.on_start = start
    return cluster


def test_a_killed_rank_restarts_the_whole_job(fake_cluster: Make) -> None:
    cluster = with_nodes_that(killed_once, fake_cluster(max_restarts=1))
    code, _, err = cluster.launch()
    assert code == 0, err
    assert "restart 1 of 1 in 0s" in err
    attempts = cluster.record["attempts"]
    assert [(each["state"], each["by"]) for each in attempts] == [
        ("FAILED", "launch"),
        ("SUCCEEDED", "restart"),
    ]
    assert [node.attempt for node in cluster.nodes] == [2, 2]


def test_a_launch_takes_care_of_its_run_between_attempts_too(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `Run.wait()` elsewhere must not return meanwhile, as the run's recorded state is FAILED."""
    cluster = with_nodes_that(killed_once, fake_cluster(max_restarts=1))
    cared_for, close = [], EventHook.close

    def close_hook(hook: EventHook) -> None:
        cared_for.append(is_taken_care_of(hook._folder))
        close(hook)

    def has_saved(folder: RunFolder, *_: object) -> bool:
        cared_for.append(is_taken_care_of(folder))
        return False

    monkeypatch.setattr(EventHook, "close", close_hook)
    monkeypatch.setattr("launcher.start.restart.has_saved", has_saved)
    assert cluster.launch()[0] == 0
    assert cared_for == [True, True, True]  # after attempt 1, before attempt 2, and after it


def test_restarts_are_used_up_after_max_restarts(fake_cluster: Make) -> None:
    cluster = with_nodes_that(rank_is_killed, fake_cluster(max_restarts=1))
    code, _, err = cluster.launch()
    assert code == 1
    assert "not restarting: all restarts are used up (1 of 1)" in err
    assert cluster.tickets == []
    assert len(cluster.record["attempts"]) == 2


def test_an_exception_is_not_restarted_and_the_message_says_how_to_resume(
    fake_cluster: Make,
) -> None:
    cluster = with_nodes_that(raises_an_exception, fake_cluster(max_restarts=3))
    code, _, err = cluster.launch()
    assert code == 1
    assert "not restarting" in err and "ddpctl resume" in err
    assert cluster.tickets == []
    assert len(cluster.record["attempts"]) == 1


def test_resuming_starts_the_next_attempt_of_the_same_run(fake_cluster: Make) -> None:
    cluster = with_nodes_that(killed_once, fake_cluster())
    assert cluster.launch()[0] == 1
    code, _, err = cluster.ddpctl("resume")
    assert code == 0, err
    assert [each["by"] for each in cluster.record["attempts"]] == ["launch", "resume"]


def test_a_resume_first_copies_what_an_attempt_printed_that_ended_while_nobody_followed_it(
    fake_cluster: Make,
) -> None:
    """Afterwards, no command would: `logs` copies the lines of the newest attempt only."""
    cluster = fake_cluster()
    assert cluster.launch("--detach")[0] == 0
    for node in cluster.nodes:
        node.say("last words", node.node_rank)
        node.end(1)
    assert cluster.ddpctl("resume", "--detach")[0] == 0
    _, out, _ = cluster.ddpctl("logs", "--attempt", "1")
    assert sorted(out.splitlines()) == ["[gpu0:0] last words", "[gpu1:1] last words"]


def test_a_resume_records_how_an_attempt_ended_that_nobody_followed(fake_cluster: Make) -> None:
    """Nothing is known about a host that no longer answers."""
    cluster = fake_cluster("gpu0", "gpu1", "gpu2")
    assert cluster.launch("--detach")[0] == 0
    first, second, _ = cluster.nodes
    first.end(1)
    second.exit(137)  # without a last word, as after `docker kill`
    cluster.hosts["gpu2"].reachable = False
    assert cluster.ddpctl("resume", "--exclude", "gpu2", "--detach")[0] == 0
    ended, now = cluster.record["attempts"]
    assert (ended["state"], now["state"]) == ("FAILED", "RUNNING") and ended["ended"]
    nodes = [(node["state"], node["exit_code"]) for node in ended["nodes"]]
    assert nodes == [("FAILED", 1), ("FAILED", 137), ("UNKNOWN", None)]


def test_a_run_that_succeeded_while_nobody_followed_it_is_not_resumed(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    assert cluster.launch("--detach")[0] == 0
    for node in cluster.nodes:
        node.end(0)
    code, _, err = cluster.ddpctl("resume", "--detach")
    assert code == 2 and "has already succeeded" in err, err
    assert cluster.record["attempts"][0]["state"] == "SUCCEEDED"
    assert cluster.ddpctl("resume", "--force", "--detach")[0] == 0


@pytest.mark.parametrize("state", ["RUNNING", "WAITING"])
def test_a_resume_that_reaches_no_host_leaves_the_record_as_it_was(
    fake_cluster: Make, state: str
) -> None:
    """`attach` still takes over a waiting run, and how a running one ends can still be seen."""
    cluster = fake_cluster()
    assert cluster.launch("--detach")[0] == 0
    folder = run_folder(cluster.record["run_id"])
    record = folder.load()
    record.attempt.state = RunState(state)
    folder.save(record)
    for host in cluster.hosts.values():
        host.reachable = False
    assert cluster.ddpctl("resume", "--detach")[0] == 4
    assert cluster.record["state"] == state
    for host in cluster.hosts.values():
        host.reachable = True
    for node in cluster.nodes:
        node.end(0)
    code, _, err = cluster.ddpctl("resume", "--detach")
    assert code == 2 and "has already succeeded" in err, err


def test_a_log_that_cannot_be_completed_does_not_stop_a_resume(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    assert cluster.launch("--detach")[0] == 0
    for node in cluster.nodes:
        node.end(1)
    cluster.hosts["gpu1"].reachable = False
    code, _, err = cluster.ddpctl("resume", "--exclude", "gpu1", "--detach")
    assert code == 0, err
    assert "warning: the log of attempt 1 may be incomplete: gpu1: no answer" in err


def test_a_resume_counts_the_attempts_that_another_machine_has_started(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster = fake_cluster()
    cluster.nodes_end(exit_code=1)
    assert cluster.launch()[0] == 1
    shutil.copytree(cluster.state, tmp_path / "other")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    assert cluster.ddpctl("resume")[0] == 1  # attempt 2, from the other machine
    monkeypatch.setenv("XDG_STATE_HOME", str(cluster.state))
    code, _, err = cluster.ddpctl("resume")
    assert code == 1, err
    assert [each["attempt"] for each in cluster.record["attempts"]] == [1, 2, 3]
    assert {node.attempt for node in cluster.nodes} == {3}


def test_a_host_that_claims_a_huge_attempt_does_not_choose_the_next_number(
    fake_cluster: Make,
) -> None:
    cluster = fake_cluster()
    cluster.nodes_end(exit_code=1)
    assert cluster.launch()[0] == 1
    [folder] = cluster.hosts["gpu1"].home.glob(".ddpctl/runs/*/nodes/1/attempt-1")
    shutil.copytree(folder, folder.with_name("attempt-9999"))
    cluster.ddpctl("resume")
    assert [each["attempt"] for each in cluster.record["attempts"]] == [1, 2]


def test_resuming_a_run_that_succeeded_needs_force(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    cluster.nodes_end(exit_code=0)
    assert cluster.launch()[0] == 0
    code, _, err = cluster.ddpctl("resume")
    assert code == 2
    assert "--force" in err


def test_a_run_that_is_alive_is_not_resumed(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    assert cluster.launch("--detach")[0] == 0
    code, _, err = cluster.ddpctl("resume")
    assert (
        code == 2
        and "is still running or waiting on gpu[0-1]; follow it with `ddpctl attach " in err
    ), err
    assert {node.attempt for node in cluster.nodes} == {1}


def test_a_resume_does_not_stop_an_attempt_that_began_since_it_looked(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster(master_port="auto", gpus=0)
    assert cluster.launch("--detach")[0] == 0
    monkeypatch.setattr("launcher.start.resume.list_nodes", lambda *_: ([], {}))
    monkeypatch.setattr("launcher.start.run_attempt.require_ended", lambda *_: None)
    code, _, err = cluster.ddpctl("resume", "--detach")
    assert code == 2 and "attempt 1 of " in err and " is still running; follow it with" in err, err
    assert [(node.attempt, node.state) for node in cluster.nodes] == [
        (1, "running"),
        (1, "running"),
    ]


def test_after_a_resume_that_was_too_late_every_command_finds_the_attempt_that_runs(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the hosts' files do not show yet that it is alive: a launch writes them before it starts."""
    cluster = fake_cluster(master_port="auto", gpus=0)
    cluster.nodes_end(exit_code=1)
    assert cluster.launch()[0] == 1
    for host in cluster:
        host.on_start = lambda node: node.say("line", rank=node.node_rank)
    shutil.copytree(cluster.state, cluster.folder / "other")
    with monkeypatch.context() as on_other_machine:
        on_other_machine.setenv("XDG_STATE_HOME", str(cluster.folder / "other"))
        assert cluster.ddpctl("resume", "--detach")[0] == 0
    with monkeypatch.context() as a_moment_earlier:
        a_moment_earlier.setattr("launcher.start.resume.list_nodes", lambda *_: ([], {}))
        code, _, err = cluster.ddpctl("resume")
    assert code == 2 and "attempt 2 of " in err and " is still running; follow it with" in err, err
    assert [each["attempt"] for each in cluster.record["attempts"]] == [1, 2]
    assert "RUNNING" in cluster.ddpctl("ps")[1]
    assert cluster.ddpctl("logs", "--attempt", "2")[1].count("line") == 2
    for node in cluster.nodes:
        node.end(0)
    code, out, err = cluster.ddpctl("attach")
    assert (code, out.count("line"), "succeeded" in err) == (0, 2, True), err
    assert cluster.ddpctl("resume", "--force", "--detach")[0] == 0
    assert {node.attempt for node in cluster.nodes} == {3}
    assert cluster.ddpctl("kill", cluster.record["run_id"])[0] == 0
    assert (cluster.nodes, cluster.record["attempts"][-1]["state"]) == ([], "CANCELLED")


def test_a_host_that_never_had_the_run_is_sent_its_checkpoint(
    fake_cluster: Make, tmp_path: Path
) -> None:
    cluster = fake_cluster()
    cluster.nodes_end(exit_code=0)
    assert cluster.launch("--include", "gpu0")[0] == 0
    [checkpoints] = cluster.hosts["gpu0"].home.glob(".ddpctl/runs/*/checkpoints")
    (checkpoints / "model.pt").write_text("weights")
    document = json.loads(Path(cluster.hosts_file).read_text())
    document["hosts"] = document["hosts"][1:]
    (tmp_path / "other.yaml").write_text(json.dumps(document))
    code, _, err = cluster.ddpctl("resume", "--force", "--hosts", tmp_path / "other.yaml")
    assert code == 0, err
    [there] = cluster.hosts["gpu1"].home.glob(".ddpctl/runs/*/checkpoints/model.pt")
    assert there.read_text() == "weights"


@pytest.mark.parametrize("recorded", [True, False])
def test_the_newest_run_of_some_hosts_resumes_on_others(
    fake_cluster: Make, tmp_path: Path, recorded: bool
) -> None:
    cluster = fake_cluster()
    cluster.nodes_end(exit_code=0)
    assert cluster.launch("--include", "gpu0")[0] == 0
    if not recorded:
        cluster.forget()
    document = json.loads(Path(cluster.hosts_file).read_text())
    (tmp_path / "other.yaml").write_text(json.dumps({**document, "hosts": ["gpu1"]}))
    given = ["resume", cluster.hosts_file, "--hosts", tmp_path / "other.yaml"]
    code, _, err = cluster.ddpctl(*given, "--force")
    assert code == 0, err
    assert [node["host"] for node in cluster.record["attempts"][1]["nodes"]] == ["gpu1"]


def test_a_resume_without_a_host_says_what_changes(fake_cluster: Make, tmp_path: Path) -> None:
    cluster = fake_cluster("gpu0", "gpu1", "gpu2")
    cluster.nodes_end(exit_code=1)
    assert cluster.launch()[0] == 1
    code, _, err = cluster.ddpctl("resume", "--exclude", "gpu1")
    assert code == 1 and "ddpctl: attempt 2 leaves out gpu1\n" in err, err
    assert [node["host"] for node in cluster.record["attempts"][1]["nodes"]] == ["gpu0", "gpu2"]
    document = json.loads(Path(cluster.hosts_file).read_text())
    document["hosts"] = ["gpu2", "gpu1", {"host": "gpu0", "nproc_per_node": 2}]
    document["job"] |= {"stop_timeout": 7, "command": ["train.py", "--lr", "2"]}
    (tmp_path / "other.yaml").write_text(json.dumps(document))
    err = cluster.ddpctl("resume", "--hosts", tmp_path / "other.yaml")[2]
    assert (
        "ddpctl: a run keeps its command, so job.command in the --hosts file is ignored; " in err
    ), err
    assert (
        "ddpctl: attempt 3 adds gpu1, changes the settings of gpu0, reorders the nodes, "
        "changes job.stop_timeout\n"
    ) in err
    code, _, err = cluster.ddpctl("resume", "--exclude", "gpu9")
    assert code == 2 and "has no host 'gpu9'" in err


def host_is_lost(cluster: FakeCluster, name: str) -> Callable[[FakeNode], None]:
    """The first attempt loses this host for good; later ones succeed."""

    def start(node: FakeNode) -> None:
        if node.attempt > 1:
            node.end(0)
        elif node.host == name:
            cluster.hosts[name].reachable = False
        else:
            reason = {"kind": "host-lost", "message": "no heartbeat", "node_rank": 1, "host": name}
            node.event("stopping", reason=reason)
            node.end(1, "failed", reason)

    return start


@pytest.fixture
def losing(fake_cluster: Make, monkeypatch: pytest.MonkeyPatch) -> Make:
    """losing("gpu1", ...): a cluster whose first attempt loses that host."""
    monkeypatch.setattr("launcher.start.restart.PATIENCE", (0.0,))

    def make(name: str, *names: str, **how: Any) -> FakeCluster:
        cluster = fake_cluster(*names, max_restarts=3, **how)
        for host in cluster:
            host.on_start = host_is_lost(cluster, name)
        return cluster

    return make


def hosts_of(cluster: FakeCluster) -> list[list[str]]:
    """The hosts of each attempt."""
    return [[node["host"] for node in each["nodes"]] for each in cluster.record["attempts"]]


def test_a_dead_spare_is_skipped_and_the_next_one_takes_the_rank(losing: Make) -> None:
    cluster = losing("gpu1", spares=["spare0", "spare1"])
    cluster.hosts["spare0"].reachable = False
    code, _, err = cluster.launch()
    assert code == 0, err
    assert hosts_of(cluster) == [["gpu0", "gpu1"], ["gpu0", "spare1"]]
    assert "spare1 replaces gpu1: no answer within 10s" in err
    restart = cluster.record["attempts"][0]["restarts"][0]
    assert (restart["kind"], restart["cause"]) == ("launcher", "host-lost")
    [node] = cluster.hosts["spare1"].nodes.values()
    spec = json.loads(node.journal.with_name("spec.json").read_text())
    assert [cause for cause, _ in spec["past_restarts"]] == ["host-lost"]


def test_the_stop_of_a_lost_host_is_finished_after_the_run_has_succeeded_without_it(
    losing: Make,
) -> None:
    cluster = losing("gpu1", spares=["spare0"])
    code, _, err = cluster.launch()
    assert code == 0 and "spare0 replaces gpu1" in err, err
    assert cluster.record["pending_stop"] == ["gpu1"]
    cluster.hosts["gpu1"].reachable = True
    code, _, err = cluster.ddpctl("ps", cluster.hosts_file)
    assert code == 0 and not cluster.hosts["gpu1"].nodes, err
    assert (cluster.record["state"], cluster.record["pending_stop"]) == ("SUCCEEDED", [])


def test_a_spare_that_cannot_start_the_node_is_replaced_by_the_next(losing: Make) -> None:
    cluster = losing("gpu1", spares=["spare0", "spare1"])
    cluster.hosts["spare0"].refuses["create"] = "no space left on device"
    code, _, err = cluster.launch()
    assert code == 0, err
    assert hosts_of(cluster)[-1] == ["gpu0", "spare1"]
    assert len(cluster.record["attempts"][0]["restarts"]) == 1


def test_attach_waits_while_a_restart_looks_for_a_host_and_after_a_failed_try_for_another(
    losing: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = losing("gpu1", spares=["spare0", "spare1"])
    cluster.hosts["spare0"].refuses["create"] = "no space left on device"
    attached = []

    def look(base: Cluster, run_id: str) -> Problems:
        tries = len(cluster.record["attempts"]) - 1  # first none, then one with spare0
        attached.append((tries, *cluster.ddpctl("attach")))
        return unusable_hosts(base, run_id)

    def wait(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("launcher.start.restart.unusable_hosts", look)
    monkeypatch.setattr(attach, "time", SimpleNamespace(sleep=wait))
    assert cluster.launch()[0] == 0
    assert [tries for tries, *_ in attached] == [0, 1]
    for _, code, _, err in attached:
        assert code == 130 and "the run's recorder may restart the run; waiting for it" in err, err


def test_without_a_spare_a_restart_goes_on_with_min_nodes(losing: Make) -> None:
    cluster = losing("gpu1", min_nodes=1)
    code, _, err = cluster.launch()
    assert code == 0, err
    assert hosts_of(cluster) == [["gpu0", "gpu1"], ["gpu0"]]
    [node] = cluster.hosts["gpu0"].nodes.values()
    spec = json.loads(node.journal.with_name("spec.json").read_text())
    assert spec["notes"][1:] == ["WORLD_SIZE 2 -> 1"]


def test_without_a_spare_and_min_nodes_the_run_ends_and_says_why(losing: Make) -> None:
    cluster = losing("gpu1")
    code, _, err = cluster.launch()
    assert code == 1
    assert "not restarting: no spare is left, and gpu1: no answer" in err
    assert cluster.record["attempts"][0]["restarts"] == []


def test_hosts_that_nodes_did_not_choose_are_spares(losing: Make) -> None:
    cluster = losing("gpu1", "gpu0", "gpu1", "gpu2")
    code, _, err = cluster.launch("--nodes", "2")
    assert code == 0, err
    assert hosts_of(cluster) == [["gpu0", "gpu1"], ["gpu0", "gpu2"]]


def test_no_other_launch_gets_the_gpus_of_a_run_that_restarts(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = with_nodes_that(killed_once, fake_cluster(max_restarts=1, gpus=1))
    rivals, listed = [], []

    def pause(_seconds: float) -> None:
        listed.append(cluster.ddpctl("ps", cluster.hosts_file)[1])
        rivals.append(cluster.launch("--max-restarts", "0", "--name", "rival"))

    monkeypatch.setattr("launcher.start.restart.time", SimpleNamespace(sleep=pause))
    code, _, err = cluster.launch("--name", "mine")
    assert code == 0, err
    assert "WAITING to restart" in listed[0]
    [(rival, _, why)] = rivals
    assert rival == 3
    assert "mine" in why and "is waiting for GPU 0" in why
    assert cluster.tickets == []


@pytest.fixture
def between_attempts(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., FakeCluster]:
    """between_attempts(act): a cluster whose run fails once. `act` comes before the restart begins."""

    def make(act: Callable[[FakeCluster], object], spares: Sequence[str] = ()) -> FakeCluster:
        cluster = fake_cluster(max_restarts=1, gpus=1, spares=spares)
        for host in cluster:
            host.on_start = killed_once
        for module in (launch, recorder):

            def act_first(folder: Any, options: Any, outcome: Outcome, *more: Any) -> Outcome:
                if outcome.state is RunState.FAILED:
                    act(cluster)
                return restart_until_done(folder, options, outcome, *more)

            monkeypatch.setattr(module, "restart_until_done", act_first)
        monkeypatch.setattr(recorder, "report_ready", lambda: None)
        return cluster

    return make


@pytest.mark.parametrize("detached", [False, True])
def test_no_gpu_is_free_between_the_end_of_a_node_and_the_restart(
    detached: bool, between_attempts: Callable[..., FakeCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed, rivals = [], []

    def look(cluster: FakeCluster) -> None:
        listed.append(cluster.ddpctl("ps", cluster.hosts_file)[1])
        rivals.append(cluster.launch("--max-restarts", "0", "--name", "rival"))

    cluster = between_attempts(look)
    code, _, err = cluster.launch("--name", "mine", *(["--detach"] if detached else []))
    if detached:
        [folder] = cluster.state.glob("ddpctl/runs/mine*")
        monkeypatch.setattr(sys, "argv", ["recorder", str(folder)])
        code = recorder.main()
    assert code == 0, err
    assert "WAITING to restart" in listed[0]
    [(rival, _, why)] = rivals
    assert rival == 3 and "mine" in why and "is waiting for GPU 0" in why
    assert cluster.tickets == []


@pytest.mark.parametrize("spares", [[], ["spare0"]])
def test_a_lost_host_that_is_back_is_kept_until_the_restart_has_its_hosts(
    spares: list[str],
    between_attempts: Callable[..., FakeCluster],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    to_the_end, rivals = Session.to_the_end, []

    def lose(session: Session) -> Outcome:
        for host in cluster:
            for node in host.nodes.values():
                host_is_lost(cluster, "gpu1")(node)
        return to_the_end(session)

    def host_is_back(cluster: FakeCluster) -> None:
        cluster.hosts["gpu1"].reachable = True
        if spares:  # other commands of this machine would complete the stop there
            rivals.append(3 if cluster.hosts["gpu1"].tickets else 0)
            return
        assert cluster.ddpctl("ps", cluster.hosts_file)[0] == 0
        rivals.append(cluster.launch("--max-restarts", "0", "--include", "gpu1", "--detach")[0])

    def blame(_: RunRecord, cluster: Cluster) -> dict[Host, PreflightError]:
        return {cluster.hosts[1]: PreflightError("it is to blame")} if spares else {}

    cluster = between_attempts(host_is_back, spares)
    for host in cluster:
        host.on_start = lambda node: node.end(0) if node.attempt > 1 else None
    monkeypatch.setattr("launcher.start.restart.hosts_to_avoid", blame)
    monkeypatch.setattr(Session, "to_the_end", lose)
    monkeypatch.setattr("launcher.start.restart.PATIENCE", ())
    code, _, err = cluster.launch()
    assert code == 0, err
    assert rivals == [3]
    hosts = [node.host for node in cluster.nodes if node.attempt == 2]
    assert hosts == ["gpu0", "spare0" if spares else "gpu1"]
    assert cluster.tickets == []


def test_the_tickets_of_a_run_that_may_restart_show_only_once_its_nodes_have_ended(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster("gpu0", max_restarts=1, gpus=1)
    to_the_end, told = Session.to_the_end, {}

    def look(session: Session) -> Outcome:
        assert len(cluster.tickets) == 1
        told["ps"] = json.loads(cluster.ddpctl("ps", cluster.hosts_file, "--json")[1])
        told["rival"] = cluster.launch("--max-restarts", "0", "--name", "rival")[2]
        told["kill"] = cluster.ddpctl("kill", session.record.run_id, "-y", "--json")[1]
        return to_the_end(session)

    monkeypatch.setattr(Session, "to_the_end", look)
    assert cluster.launch()[0] == 7
    [run] = told["ps"]["runs"]
    assert (run["state"], len(run["nodes"])) == ("RUNNING", 1)
    assert "has GPU 0" in told["rival"] and "is waiting for" not in told["rival"]
    [killed] = json.loads(told["kill"])["runs"]
    assert [host["stopped"] for host in killed["hosts"]] == [1]
    assert cluster.tickets == []


def test_attach_reports_a_kill_during_the_pause_before_the_recorder_restarts_the_run(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster(max_restarts=1)
    folder = run_folder(cluster.launch("--detach")[1].strip())
    cluster.nodes[0].exit(137)
    cluster.nodes[1].end(143, "stopped")
    recorders = [folder]
    monkeypatch.setattr(attach.attempt_lock, "is_taken_care_of", lambda _: bool(recorders))

    def kill(_: float) -> None:
        record = folder.load()
        record.attempt.state = RunState.CANCELLED
        folder.save(record)
        recorders.clear()

    monkeypatch.setattr(attach, "time", SimpleNamespace(sleep=kill))
    code, _, err = cluster.ddpctl("attach")
    assert code == 7 and "the run's recorder may restart the run" in err, err


@pytest.mark.parametrize(("command", "ends"), [(["attach"], 7), (["logs", "-f"], 0)])
def test_attach_and_logs_wait_for_the_recorders_restart_until_a_kill(
    command: list[str],
    ends: int,
    fake_cluster: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """During the pause before the restart, or while the restart looks for hosts."""
    cluster = fake_cluster(max_restarts=1)
    folder = run_folder(cluster.launch("--detach")[1].strip())
    cluster.nodes[0].exit(137)
    cluster.nodes[1].end(143, "stopped")
    recorders: list[RunFolder] = []
    monkeypatch.setattr(attach.attempt_lock, "is_taken_care_of", lambda _: bool(recorders))

    def kill(_: float) -> None:
        record = folder.load()
        record.attempt.state = RunState.CANCELLED
        folder.save(record)
        recorders.clear()

    cluster.ddpctl("attach")  # ends the attempt
    recorders.append(folder)
    for module in (attach, logs):
        monkeypatch.setattr(module, "time", SimpleNamespace(sleep=kill))
    code, _, err = cluster.ddpctl(*command)
    assert (code, folder.load().state, recorders) == (ends, RunState.CANCELLED, []), err


def test_logs_do_not_wait_for_a_restart_once_nobody_reads_them(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after `| head`."""
    cluster = fake_cluster(max_restarts=1)
    cluster.launch("--detach")
    cluster.nodes[0].exit(137)
    cluster.nodes[1].end(143, "stopped")
    cluster.ddpctl("attach")  # ends the attempt
    monkeypatch.setattr(logs.attempt_lock, "is_taken_care_of", lambda _: True)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        assert not pauses
        pauses.append(seconds)
        monkeypatch.setattr(Console, "reader_left", True)

    monkeypatch.setattr(logs, "time", SimpleNamespace(sleep=pause))
    assert cluster.ddpctl("logs", "-f")[0] == 0 and pauses


def test_attach_prints_the_log_of_an_attempt_that_ended_between_two_looks_at_a_pending_one(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster()

    def start(node: FakeNode) -> None:
        node.say("hello", node.node_rank)
        node.end(0)

    for host in cluster:
        host.on_start = start
    assert cluster.launch()[0] == 0
    folder = run_folder(cluster.record["run_id"])
    ended, pending = folder.load(), folder.load()
    pending.attempt.state = RunState.PENDING
    folder.save(pending)

    def end(_: float) -> None:
        folder.save(ended)

    monkeypatch.setattr(attach, "time", SimpleNamespace(sleep=end))
    monkeypatch.setattr(attach.attempt_lock, "is_taken_care_of", lambda _: True)
    code, out, err = cluster.ddpctl("attach")
    assert code == 0, err
    assert sorted(out.splitlines()) == ["[gpu0:0] hello", "[gpu1:1] hello"]


def restarted_once(fake_cluster: Make) -> tuple[FakeCluster, RunFolder]:
    """Return a cluster and its run, whose second attempt succeeded."""
    cluster = with_nodes_that(killed_once, fake_cluster(max_restarts=1))
    assert cluster.launch()[0] == 0
    return cluster, run_folder(cluster.record["run_id"])


def ask_before_the_restart(run_id: str, monkeypatch: pytest.MonkeyPatch) -> RunRecord:
    """Make the next command see the restart only after it has asked the hosts.

    Return the record from before the restart.
    """
    before = run_folder(run_id).load()
    del before.attempts[1:]
    ask, told = newest_attempt.caught_up, itertools.chain([before], itertools.repeat(None))
    monkeypatch.setattr(newest_attempt, "caught_up", lambda *args: next(told) or ask(*args))
    return before


@pytest.mark.parametrize("is_known", [False, True])
def test_only_the_machine_that_started_an_attempt_restarts_it(
    is_known: bool, fake_cluster: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    """Another one does not know the command, which may have been on the command line, nor its values."""
    cluster = fake_cluster(gpus=1, max_restarts=1)
    assert cluster.launch("--detach", "--", "other.py", "--lr", "3")[0] == 0
    [folder] = run_folders()
    if is_known:  # attempt 1 was started here, and attempt 2 elsewhere
        record = folder.load()
        record.attempts.append(dataclasses.replace(record.attempt, attempt=2, master_addr=""))
        folder.save(record)
    else:
        cluster.forget()
        assert cluster.ddpctl("logs", "--hosts", cluster.hosts_file)[0] == 0
    record, options = folder.load(), LaunchOptions()
    with turn_kept_for_restart(folder, record, options, Console()):
        assert cluster.tickets == []
    record.attempt.state = RunState.FAILED
    folder.save(record)
    failed = Outcome(RunState.FAILED)
    assert restart_until_done(folder, options, failed, Interrupts(), Console()) is failed
    assert "was started on another machine" in capfd.readouterr().err


def test_attach_follows_the_attempt_that_a_recorder_started_while_the_hosts_were_asked(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command waits ten seconds for a dead host. Attach took the first attempt for the second."""
    cluster, folder = restarted_once(fake_cluster)
    after = folder.load()
    after.attempt.state = RunState.RUNNING
    folder.save(after)
    ask_before_the_restart(folder.run_id, monkeypatch)
    code, _, err = cluster.ddpctl("attach")
    assert (code, cluster.record["state"]) == (0, "SUCCEEDED"), err


def test_attach_waits_for_the_start_of_an_attempt_that_was_new_while_the_hosts_were_asked(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, folder = restarted_once(fake_cluster)
    before, starting, ended = folder.load(), folder.load(), folder.load()
    del before.attempts[1:]
    folder.save(before)
    starting.attempt.state = RunState.PENDING
    ask, is_starting = newest_attempt.caught_up, False

    def restart(*args: Any) -> RunRecord:
        nonlocal is_starting
        if folder.load().attempt.number == 1:
            folder.save(starting)
            is_starting = True
        return ask(*args)

    def start(_: float) -> None:
        nonlocal is_starting
        folder.save(ended)
        is_starting = False

    monkeypatch.setattr(newest_attempt, "caught_up", restart)
    monkeypatch.setattr(attach, "time", SimpleNamespace(sleep=start))
    monkeypatch.setattr(attach.attempt_lock, "is_taken_care_of", lambda _: is_starting)
    code, _, err = cluster.ddpctl("attach")
    assert (code, is_starting, folder.load()) == (0, False, ended), err


def test_logs_print_each_line_once_if_a_recorder_restarts_the_run_while_they_ask_the_hosts(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command waits ten seconds for a dead host."""

    def start(node: FakeNode) -> None:
        node.say(f"hello {node.attempt}", node.node_rank)
        killed_once(node)

    cluster = with_nodes_that(start, fake_cluster(max_restarts=1))
    assert cluster.launch()[0] == 0
    ask_before_the_restart(cluster.record["run_id"], monkeypatch)
    code, out, err = cluster.ddpctl("logs", "-f")
    assert (code, [line[-1] for line in out.splitlines()]) == (0, [*"1122"]), err


def test_logs_print_all_attempts_that_start_while_they_ask_the_hosts_of_the_first(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, folder = restarted_once(fake_cluster)
    after = folder.load()
    folder.save(ask_before_the_restart(folder.run_id, monkeypatch))
    printed: list[tuple[int | None, int]] = []

    def restarted(*_: object) -> int:
        folder.save(after)
        return 2

    def print_recorded(
        _: RunFolder, chosen: LogFilter, __: object, ___: object, first: int
    ) -> None:
        printed.append((chosen.attempt, first))

    monkeypatch.setattr(logs, "print_recorded", print_recorded)
    monkeypatch.setattr(logs, "wait_for_attempt", restarted)
    assert (cluster.ddpctl("logs", "-f")[0], printed) == (0, [(None, 1), (None, 2)])


@pytest.mark.parametrize("state", [RunState.WAITING, RunState.PENDING])
def test_logs_follow_a_run_from_its_start_that_they_wait_for(
    state: RunState, fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster()
    folder = run_folder(cluster.launch("--detach")[1].strip())
    started, waiting = folder.load(), folder.load()
    waiting.attempt.state, waiting.attempt.started = state, None
    folder.save(waiting)
    running = [(host, host.nodes.copy()) for host in cluster]
    for host in cluster:
        host.nodes.clear()
    monkeypatch.setattr(logs.attempt_lock, "is_taken_care_of", lambda _: folder.load() == waiting)

    def start(_: float) -> None:
        for host, nodes in running:
            host.nodes |= nodes
        for node in cluster.nodes:
            node.say("hello", node.node_rank)
            node.end(0)
        folder.save(started)

    monkeypatch.setattr(logs, "time", SimpleNamespace(sleep=start))
    code, out, err = cluster.ddpctl("logs", "-f")
    assert (code, sorted(out.splitlines())) == (0, ["[gpu0:0] hello", "[gpu1:1] hello"]), err
    assert ("is waiting in line; `ddpctl ps`" in err) is (state is RunState.WAITING)


def test_a_run_that_is_killed_while_it_restarts_does_not_start_again(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = with_nodes_that(killed_once, fake_cluster(max_restarts=1))

    def pause(_seconds: float) -> None:
        assert cluster.ddpctl("kill", cluster.record["run_id"], "-y")[0] == 0

    monkeypatch.setattr("launcher.start.restart.time", SimpleNamespace(sleep=pause))
    code, _, err = cluster.launch()
    assert code == 7, err
    assert (cluster.record["state"], cluster.nodes) == ("CANCELLED", [])


def test_a_kill_from_another_machine_ends_a_restart_that_waits_for_a_lost_host(
    losing: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.start.restart.PATIENCE", (40.0,))
    monkeypatch.setattr("launcher.start.tickets.KEEP", 0.1)
    cluster = losing("gpu1")
    look = restart.unusable_hosts
    killed: list[float] = []

    def look_and_kill(*args: Any) -> object:
        unusable = look(*args)
        run_id = cluster.record["run_id"]
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv("XDG_STATE_HOME", str(cluster.folder / "elsewhere"))
            assert cluster.ddpctl("kill", run_id, "--hosts", cluster.hosts_file)[0] == 6
        killed.append(time.monotonic())
        return unusable

    monkeypatch.setattr(restart, "unusable_hosts", look_and_kill)
    code, _, err = cluster.launch()
    assert (code, len(killed)) == (7, 1), err
    assert time.monotonic() - killed[0] < 30
    assert cluster.record["state"] == "CANCELLED"


def test_an_unconfirmed_kill_during_the_pause_before_a_restart_is_not_forgotten(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = with_nodes_that(killed_once, fake_cluster(max_restarts=1, min_nodes=1))

    def pause(seconds: float) -> None:
        if cluster.hosts["gpu1"].reachable:
            cluster.hosts["gpu1"].reachable = False
            assert cluster.ddpctl("kill", cluster.record["run_id"])[0] == 6

    monkeypatch.setattr("launcher.start.restart.time", SimpleNamespace(sleep=pause))
    code, _, err = cluster.launch()
    assert code == 7, err
    assert (cluster.record["state"], cluster.record["pending_stop"]) == ("CANCELLED", ["gpu1"])


def first_fails_then_runs(node: FakeNode) -> None:
    if node.attempt == 1:
        rank_is_killed(node)


def kill_and_resume(cluster: FakeCluster) -> None:
    assert cluster.ddpctl("kill", cluster.record["run_id"])[0] == 0
    assert cluster.ddpctl("resume", "--detach")[0] == 0


def assert_only_the_resumed_attempt_runs(cluster: FakeCluster) -> None:
    assert [each["state"] for each in cluster.record["attempts"]] == ["FAILED", "RUNNING"]
    assert [(node.attempt, node.state) for node in cluster.nodes] == [(2, "running")] * 2


def test_a_kill_and_a_resume_during_the_pause_before_a_restart_end_the_restart(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = with_nodes_that(first_fails_then_runs, fake_cluster(max_restarts=1))

    def pause(_seconds: float) -> None:
        kill_and_resume(cluster)

    monkeypatch.setattr("launcher.start.restart.time", SimpleNamespace(sleep=pause))
    code, _, err = cluster.launch()
    assert code == 1 and "not restarting: another command has resumed the run" in err, err
    assert_only_the_resumed_attempt_runs(cluster)


def test_a_restart_leaves_the_attempt_to_a_resume_that_is_preparing_it(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = with_nodes_that(first_fails_then_runs, fake_cluster(max_restarts=1))
    with contextlib.ExitStack() as resume:

        def pause(_seconds: float) -> None:
            resume.enter_context(locked(run_folder(cluster.record["run_id"]).attempt_lock(2)))

        monkeypatch.setattr("launcher.start.restart.time", SimpleNamespace(sleep=pause))
        code, _, err = cluster.launch()
    assert code == 1, err
    assert "not restarting: another command on this machine is starting attempt 2" in err
    assert [each["state"] for each in cluster.record["attempts"]] == ["FAILED"]


def test_a_kill_and_a_resume_while_a_restart_looks_for_hosts_leave_the_resumed_attempt_alone(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = with_nodes_that(first_fails_then_runs, fake_cluster(max_restarts=1))

    def look(*_: object) -> dict[Host, PreflightError]:
        kill_and_resume(cluster)
        return {}

    monkeypatch.setattr("launcher.start.restart.unusable_hosts", look)
    code, _, err = cluster.launch()
    assert code == 7, err
    assert_only_the_resumed_attempt_runs(cluster)


def test_a_run_that_was_killed_during_the_pause_before_a_restart_can_be_resumed(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = with_nodes_that(killed_once, fake_cluster(max_restarts=1))

    def pause(_seconds: float) -> None:
        assert cluster.ddpctl("kill", cluster.record["run_id"])[0] == 0

    monkeypatch.setattr("launcher.start.restart.time", SimpleNamespace(sleep=pause))
    assert cluster.launch()[0] == 7
    code, _, err = cluster.ddpctl("resume")
    assert code == 0, err


def test_a_run_that_is_killed_before_it_restarts_does_not_start_again(
    between_attempts: Callable[..., FakeCluster],
) -> None:
    def kill(cluster: FakeCluster) -> None:
        assert cluster.ddpctl("kill", cluster.record["run_id"], "-y")[0] == 0

    cluster = between_attempts(kill)
    code, _, err = cluster.launch()
    assert code == 7 and "was killed while it was restarting" in err
    assert (cluster.record["state"], cluster.nodes, cluster.tickets) == ("CANCELLED", [], [])


@pytest.mark.parametrize(
    "where",
    [
        "follow.session.report_end",
        "follow.hooks.EventHook.close",
        "start.restart.time",
        "start.run_attempt.report_changes",
    ],
)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGHUP, 130), (signal.SIGQUIT, 0)])
def test_a_terminal_that_closes_between_two_attempts_leaves_the_next_one_to_a_recorder(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch, number: int, code: int, where: str
) -> None:
    cluster = with_nodes_that(first_fails_then_runs, fake_cluster(max_restarts=1))

    def interrupt(*_: object) -> None:
        signal.raise_signal(number)

    pause = SimpleNamespace(sleep=interrupt)
    what = pause if where == "start.restart.time" else interrupt
    monkeypatch.setattr(f"launcher.{where}", what)
    before = signal.signal(number, signal.default_int_handler)  # instead of ending the test too
    try:
        ended, _, err = cluster.launch()
    finally:
        signal.signal(number, before)
    assert ended == code and "the run continues; follow it with" in err, err
    assert [each["state"] for each in cluster.record["attempts"]] == ["FAILED", "RUNNING"]
    assert cluster.recorders == [cluster.record["run_id"]]


def test_a_cuda_error_with_an_xid_of_that_gpu_replaces_the_host(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster(max_restarts=2, gpus=1, spares=["spare0"])
    sick = cluster.hosts["gpu1"]
    smi = sick.tools / "nvidia-smi"
    rule = "*uuid,pci*) echo 'GPU-gpu1-0, 00000000:07:00.0' ;; esac"
    smi.write_text(smi.read_text().replace("esac", rule))
    log = sick.tools / "dmesg"

    def fail(node: FakeNode) -> None:
        if node.node_rank == 0:
            node.stop()
            return
        log.write_text("#!/bin/sh\necho 'NVRM: Xid (PCI:0000:07:00): 48, pid=7, DBE'\n")
        log.chmod(0o755)
        text = "RuntimeError: CUDA error: unspecified launch failure"
        for celsius in (61, 87):
            load = {"use": 98, "used": 5, "total": 9, "celsius": celsius}
            node.event("usage", cores=1.0, gpus=[load])
        node.event("rank_exit", rank=1, local_rank=0, pid=7, exit_code=1, last_lines=[text])
        node.end(1, reason={"kind": "rank", "message": "rank 1 failed", "node_rank": 1})

    for host in cluster:
        host.on_start = first_fails_then_succeeds(fail)
    code, _, err = cluster.launch()
    assert code == 0, err
    assert hosts_of(cluster) == [["gpu0", "gpu1"], ["gpu0", "spare0"]]
    assert cluster.record["attempts"][0]["first_failure"]["kind"] == "gpu-failed"
    [kept] = cluster.state.glob("ddpctl/runs/*/logs/failure-attempt-1.txt")
    text = kept.read_text()
    assert "GPUs at the start:\n  0: 98% use, 5 of 9 MiB, 0 MHz, 61 C" in text
    assert "NVRM: Xid" in text and "  RuntimeError: CUDA error: unspecified launch failure" in text
    _, out, _ = cluster.ddpctl("check", cluster.hosts_file)
    assert "gpu1: runs: run " in out and "Xid 48" in out
    code, out, _ = cluster.ddpctl("check", "--clear", "gpu1", "--json")
    assert (code, json.loads(out)["cleared"]) == (0, True)
    assert "avoids it" not in cluster.ddpctl("check", cluster.hosts_file)[1]


def test_spares_get_the_code_unlike_hosts_not_chosen_and_a_dead_one_is_a_warning(
    fake_cluster: Make, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("pass")
    cluster = fake_cluster(
        "gpu0", "gpu1", spares=["spare0", "spare1"], workdir=str(tmp_path / "code")
    )
    cluster.hosts["spare1"].reachable = False
    cluster.nodes_end(exit_code=0)
    code, _, err = cluster.ddpctl("launch", cluster.hosts_file, "--no-check", "--nodes", "1")
    assert code == 0, err
    assert list(cluster.hosts["spare0"].home.glob(".ddpctl/workdirs/*/train.py"))
    assert not list(cluster.hosts["gpu1"].home.glob(".ddpctl/workdirs/*/train.py"))
    assert "warning: spare spare1: no answer within 10s" in err


@pytest.mark.slow
def test_check_shows_spares_whose_problems_are_warnings(fake_cluster: Make) -> None:
    cluster = fake_cluster(spares=["spare0", "spare1"])
    cluster.hosts["spare1"].reachable = False
    for host in cluster:
        host.on_start = lambda node: node.ended.set()  # test containers end
    _, out, _ = cluster.ddpctl("check", cluster.hosts_file)
    assert "warning: spare1: ssh: no answer within 10s" in out
    rows = {line.split()[0]: line.split()[1] for line in out.splitlines() if line.strip()}
    assert (rows["spare0"], rows["spare1"]) == ("ok", "warn")


def test_a_spare_replaces_a_host_that_has_lost_a_gpu(fake_cluster: Make) -> None:
    cluster = fake_cluster(max_restarts=1, gpus=2, spares=["spare0"], nproc_per_node=1)

    def fail(node: FakeNode) -> None:
        rank_is_killed(node)
        cluster.hosts["gpu1"].give_gpus(1)

    for host in cluster:
        host.on_start = first_fails_then_succeeds(fail)
    code, _, err = cluster.launch()
    assert code == 0, err
    assert hosts_of(cluster)[-1] == ["gpu0", "spare0"]
    assert "spare0 replaces gpu1: lost 1 of this run's 2 GPUs" in err
