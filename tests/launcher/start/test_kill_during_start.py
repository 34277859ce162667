"""A run that is killed while its start is being prepared does not start."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeCluster, FakeNode

from launcher.engines.docker import Docker
from launcher.engines.process import Processes
from launcher.follow import session as follow_session
from launcher.hosts import Host
from launcher.ssh.host_connection import connected
from launcher.start import (
    launch,
    reservation,
    restart,
    run_attempt,
    start_nodes,
    waiting_line,
)
from launcher.start.planned_attempt import PlannedAttempt
from launcher.start.request import Request
from launcher.start.tickets import Tickets
from launcher.stop import kill as stop_kill
from launcher.stop.stop_on_host import MARK_CANCELLED, Stop

pytestmark = pytest.mark.slow  # most of these tests start several runs
Make = Callable[..., FakeCluster]
RUN = "20261125-031500-doomed"
MOMENTS = {  # where the kill comes in: just before this is called
    "pushing": (run_attempt, "push"),
    "reserving": (reservation, "ask_each"),
    "reserved": (Request, "save_pending"),
    "recorded": (run_attempt, "for_hosts"),
    "filled": (start_nodes, "supervisor_spec"),
    "created": (run_attempt, "settle_with_rivals"),
    "starting": (None, "start"),  # of the engine
}
ENGINES = {"docker": Docker, "process": Processes}


@pytest.fixture(autouse=True)
def _one_run_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "new_run_id", lambda name: RUN)
    monkeypatch.setattr(waiting_line, "TICK", 0.01)
    monkeypatch.setattr(waiting_line, "POLL", 0.05)


def just_before(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, do: Callable[[], object]
) -> None:
    """Do something before the first call of a function."""
    real, todo = getattr(owner, name), [do]

    def first(*args: Any, **named: Any) -> Any:
        if todo:
            todo.pop()()
        return real(*args, **named)

    monkeypatch.setattr(owner, name, first)


def kill(cluster: FakeCluster, whence: str) -> None:
    words = ["kill", RUN]
    if whence == "elsewhere":
        words += ["--hosts", cluster.hosts_file]
    code, _, err = ddpctl_on(whence, cluster, *words)
    assert code == 0, err


def ddpctl_on(whence: str, cluster: FakeCluster, *words: str) -> tuple[int, str, str]:
    with pytest.MonkeyPatch.context() as machine:
        if whence == "elsewhere":
            machine.setenv("XDG_STATE_HOME", str(cluster.folder / "elsewhere"))
        return cluster.ddpctl(*words)


def left(cluster: FakeCluster) -> list[object]:
    """Return what is left of the run on the hosts, apart from folders."""
    claims = cluster.folder.glob("hosts/*/claims-*/*")
    return [*cluster.nodes, *cluster.tickets, *claims]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("moment", "whence"),
    [
        ("reserved", "elsewhere"),
        ("recorded", "here"),
        ("recorded", "elsewhere"),
        ("filled", "here"),
        ("created", "elsewhere"),
        ("starting", "here"),
    ],
)
def test_a_run_that_is_killed_before_its_nodes_start_does_not_start(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch, moment: str, whence: str, engine: str
) -> None:
    cluster = fake_cluster(engine=engine)
    owner, name = MOMENTS[moment]
    just_before(monkeypatch, owner or ENGINES[engine], name, lambda: kill(cluster, whence))
    code, _, err = cluster.launch("--on-event", 'echo "$DDPCTL_EVENT $DDPCTL_MESSAGE" >> events')
    assert code == 7, err
    assert f"error: run {RUN} was killed before it started" in err
    assert left(cluster) == []
    assert cluster.record["state"] == "CANCELLED"
    if moment != "reserved":
        assert Path("events").read_text() == "attempt-ended CANCELLED\n"
    if moment != "starting":  # then the other host's node may have been faster
        journals = cluster.folder.glob(f"hosts/*/.ddpctl/runs/{RUN}/nodes/*/*/journal")
        assert all(journal.read_text() == "" for journal in journals)


@pytest.mark.parametrize("call", ["create", "start"])
def test_a_node_that_fails_because_the_run_is_killed_is_no_failure_of_the_run(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    cluster = fake_cluster()

    def kill_and_refuse() -> None:
        kill(cluster, "elsewhere")
        for host in cluster:
            host.refuses[call] = "its folder is gone"

    just_before(monkeypatch, Docker, call, kill_and_refuse)
    code, _, err = cluster.launch()
    assert code == 7, err
    assert f"error: run {RUN} was killed before it started" in err
    assert left(cluster) == []
    assert cluster.record["state"] == "CANCELLED"


@pytest.mark.parametrize("moment", ["pushing", "reserving", "reserved", "recorded", "created"])
def test_a_resume_is_killed_too_and_the_next_one_starts(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    cluster = fake_cluster()
    cluster.nodes_end(1)
    assert cluster.launch()[0] == 1
    cluster.nodes_end(0)
    with monkeypatch.context() as patch:
        just_before(patch, *MOMENTS[moment], lambda: kill(cluster, "here"))
        code, _, err = cluster.ddpctl("resume", RUN)
    assert code == 7, err
    assert left(cluster) == []
    assert [each["state"] for each in cluster.record["attempts"]] in (
        ["FAILED", "CANCELLED"],
        ["FAILED"],  # killed before the attempt was recorded
    )
    code, _, err = cluster.ddpctl("resume", RUN)
    assert code == 0, err
    assert cluster.record["state"] == "SUCCEEDED"


@pytest.mark.parametrize(
    ("owner", "step"),
    [
        (run_attempt, "create_nodes"),
        (run_attempt, "start_nodes"),
        (run_attempt.Starter, "record_start"),
        (Tickets, "held_for_restart"),
    ],
)
def test_a_signal_during_the_start_stops_the_run_as_soon_as_it_is_followed(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch, owner: Any, step: str
) -> None:
    cluster = fake_cluster()
    just_before(monkeypatch, owner, step, lambda: signal.raise_signal(signal.SIGTERM))
    code, _, err = cluster.launch()
    assert code == 130, err
    assert "stopping the run on 2 hosts" in err
    assert cluster.record["state"] == "CANCELLED"
    assert all(node.ended.is_set() for node in cluster.nodes)


def test_a_run_that_is_killed_just_before_it_joins_the_line_leaves_no_ticket(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster(gpus=2, master_port="auto")
    monkeypatch.setattr(launch, "new_run_id", lambda name: "20261125-030000-first")
    assert cluster.launch("--detach")[0] == 0
    monkeypatch.setattr(launch, "new_run_id", lambda name: RUN)
    just_before(monkeypatch, Tickets, "hold", lambda: kill(cluster, "here"))
    code, _, err = cluster.launch("--wait", "--detach")
    assert code == 7, err
    assert cluster.tickets == [] and cluster.recorders == ["20261125-030000-first"]
    [path] = cluster.state.glob(f"ddpctl/runs/{RUN}/run.json")
    assert json.loads(path.read_text())["state"] == "CANCELLED"


def test_a_kill_that_knows_only_the_former_host_reaches_a_restart_on_a_spare(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster("gpu0", max_restarts=1, gpus=2, spares=["spare0"], nproc_per_node=1)

    def loses_a_gpu(node: FakeNode) -> None:
        node.event("rank_exit", rank=0, local_rank=0, pid=7, exit_code=-9, signal="SIGKILL")
        node.end(1, reason={"kind": "rank", "message": "rank 0 was killed", "node_rank": 0})
        cluster.hosts["gpu0"].give_gpus(1)

    cluster.hosts["gpu0"].on_start = loses_a_gpu
    cluster.hosts["spare0"].on_start = lambda node: node.end(0)
    create = run_attempt.create_nodes

    def kill_and_create(planned: PlannedAttempt, *more: Any, **named: Any) -> None:
        if planned.plan.attempt == 2:
            assert [connection.name for connection in planned.connections] == ["spare0"]
            with connected([Host("gpu0")]) as [former]:
                assert not Stop(RUN, "docker", 1.0, ()).on_host(former).left
        create(planned, *more, **named)

    monkeypatch.setattr("launcher.start.restart.PAUSES_BY_LAUNCHER", (0.0, 0.0, 0.0))
    monkeypatch.setattr(run_attempt, "create_nodes", kill_and_create)
    code, _, err = cluster.launch()
    assert code == 7 and "was killed while it was restarting" in err, err
    assert left(cluster) == []


def test_a_kill_finds_a_run_that_has_moved_to_another_host_since_it_read_the_runs_hosts(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster("gpu0", "gpu1", nproc_per_node=1)
    cluster.hosts["gpu0"].on_start = lambda node: node.end(1)
    cluster.launch("--nodes", "1")
    moved = []

    def move() -> None:
        moved.append(cluster.ddpctl("resume", RUN, "--hosts", "gpu1,", "--detach"))

    just_before(monkeypatch, stop_kill, "cancel_start", move)
    code, _, err = cluster.ddpctl("kill", RUN)
    assert [each[0] for each in moved] == [0], moved
    assert (code, cluster.record["state"]) == (0, "CANCELLED"), err
    assert not cluster.hosts["gpu1"].nodes


def test_a_kill_marks_an_attempt_that_is_reserved_while_it_marks_the_former_one(
    tmp_path: Path,
) -> None:
    reserved = tmp_path / f".ddpctl/runs/{RUN}/reserved"
    reserved.mkdir(parents=True)
    (reserved / "1").symlink_to("token")
    tools = tmp_path / "bin"
    tools.mkdir()
    uname = tools / "uname"  # is called for each mark
    uname.write_text(f"#!/bin/sh\nln -sfT other {reserved}/2\necho here\n")
    uname.chmod(0o755)
    env = {"HOME": str(tmp_path), "PATH": f"{tools}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", MARK_CANCELLED, "sh", RUN], env=env, check=True)
    assert {path.name for path in reserved.glob("*-cancelled-*")} == {
        "1-cancelled-here",
        "2-cancelled-here",
    }


@pytest.mark.parametrize(
    ("owner", "step"),
    [
        (follow_session, "explain"),  # the record still says RUNNING
        (restart, "has_saved"),
        (restart, "unusable_hosts"),
        (restart, "request_for"),
        (run_attempt, "push"),
        (Request, "save_pending"),
        (run_attempt, "for_hosts"),
    ],
)
def test_a_kill_that_reaches_no_host_ends_the_restart_on_a_spare(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch, owner: Any, step: str
) -> None:
    cluster = fake_cluster("gpu0", spares=["spare0"], max_restarts=1, nproc_per_node=1)
    codes = []

    def lose_host_and_kill() -> None:
        cluster.hosts["gpu0"].reachable = False
        codes.append(cluster.ddpctl("kill", RUN)[0])

    def fail(node: FakeNode) -> None:
        just_before(monkeypatch, owner, step, lose_host_and_kill)
        node.event("rank_exit", rank=0, local_rank=0, pid=7, exit_code=-9, signal="SIGKILL")
        node.end(1, reason={"kind": "rank", "message": "rank 0 was killed", "node_rank": 0})

    cluster.hosts["gpu0"].on_start = fail
    cluster.hosts["spare0"].on_start = lambda node: node.end(0)
    monkeypatch.setattr(restart, "PATIENCE", ())
    monkeypatch.setattr(restart, "PAUSES_BY_LAUNCHER", (0.0, 0.0, 0.0))
    code, _, err = cluster.launch()
    assert code == 7 and f"run {RUN} was killed while it was restarting" in err, err
    assert (codes, cluster.record["state"]) == ([6], "CANCELLED")
    assert not cluster.hosts["spare0"].nodes


@pytest.fixture
def about_to_restart(fake_cluster: Make, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def make(deed: Callable[[FakeCluster], object], *more: str, uptime: int = 5000) -> FakeCluster:
        """Return a cluster whose run on gpu0 and `more` fails, and will do `deed` before it restarts."""
        cluster = fake_cluster("gpu0", *more, spares=["spare0"], max_restarts=1, nproc_per_node=1)

        def fail(node: FakeNode) -> None:
            node.event("rank_exit", rank=0, local_rank=0, pid=7, exit_code=-9, signal="SIGKILL")
            node.end(1, reason={"kind": "rank", "message": "rank 0 was killed", "node_rank": 0})
            cluster.nodes_end(0)

        cluster.hosts["gpu0"].on_start = fail
        cluster.hosts["gpu0"].install("cut", f"#!/bin/sh\necho {uptime}\n")
        monkeypatch.setattr(restart, "PAUSES_BY_LAUNCHER", (0.0, 0.0, 0.0))
        just_before(monkeypatch, restart, "has_saved", lambda: deed(cluster))
        return cluster

    return make


@pytest.mark.parametrize("whence", ["here", "elsewhere"])
def test_a_clean_that_kills_ends_a_run_that_is_about_to_restart(
    about_to_restart: Callable[..., FakeCluster], monkeypatch: pytest.MonkeyPatch, whence: str
) -> None:
    cleaned = []

    def clean(cluster: FakeCluster) -> None:
        words = ("clean", cluster.hosts_file, "--kill", "-y")
        cleaned.append(ddpctl_on(whence, cluster, *words))
        monkeypatch.setattr(run_attempt, "push", pytest.fail)  # what was removed is not sent again

    cluster = about_to_restart(clean)
    code, _, err = cluster.launch()
    assert code == 7 and f"run {RUN} was killed while it was restarting" in err, err
    assert [each[0] for each in cleaned] == [0] and left(cluster) == []


def test_a_clean_leaves_a_run_alone_that_is_about_to_restart(
    about_to_restart: Callable[..., FakeCluster],
) -> None:
    cleaned = []
    cluster = about_to_restart(
        lambda cluster: cleaned.append(cluster.ddpctl("clean", cluster.hosts_file, "-y"))
    )
    code, _, err = cluster.launch()
    assert code == 0 and cluster.record["state"] == "SUCCEEDED", err
    [(code, _, err)] = cleaned
    assert code == 0 and f"gpu0: not cleaned: {RUN} is running or about to start" in err


def lose_disk(cluster: FakeCluster) -> None:
    shutil.rmtree(cluster.hosts["gpu0"].home / ".ddpctl")


def test_a_run_restarts_on_a_host_that_comes_back_with_an_empty_disk(
    about_to_restart: Callable[..., FakeCluster],
) -> None:
    cluster = about_to_restart(lose_disk, uptime=30)
    code, _, err = cluster.launch()
    assert code == 0 and cluster.record["state"] == "SUCCEEDED", err
    assert [node.host for node in cluster.nodes] == ["gpu0"]


def lose_linked_disk(cluster: FakeCluster) -> None:
    lose_disk(cluster)
    (cluster.hosts["gpu0"].home / ".ddpctl").symlink_to("scratch/ddpctl")


@pytest.mark.parametrize(("loss", "others"), [(lose_disk, ["gpu1"]), (lose_linked_disk, [])])
def test_a_host_that_has_lost_its_disk_does_not_end_the_run(
    about_to_restart: Callable[..., FakeCluster],
    loss: Callable[[FakeCluster], None],
    others: Sequence[str],
) -> None:
    code, _, err = about_to_restart(loss, *others).launch()
    assert code == 0, err
