"""A run that another machine has resumed: the hosts are right; this machine's record is out of date."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence

import pytest
from fakes import FakeCluster, FakeNode

from launcher.hosts import load
from launcher.runs import adopt
from launcher.runs.run_folder import run_folder
from launcher.ssh.host_connection import HostConnection

pytestmark = pytest.mark.slow  # most of these tests start several runs
Make = Callable[..., FakeCluster]


def start(node: FakeNode) -> None:
    node.say(f"attempt {node.attempt} on {node.host}", node.node_rank)
    node.end(1 if node.attempt == 1 else 0)


@pytest.fixture
def cluster(fake_cluster: Make, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """A run whose attempt 1 failed, and whose attempt 2 succeeded on another machine's command."""
    made = fake_cluster("gpu0", "gpu1")
    for host in made:
        host.on_start = start
    assert made.launch("--name", "mine", "--env", "KEY=value")[0] == 1
    other = shutil.copytree(made.state, made.folder / "other")
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("XDG_STATE_HOME", str(other))
        code, _, err = made.ddpctl("resume")
        assert code == 0, err
    return made


def test_attach_shows_the_newest_attempt_and_exits_as_it_did(cluster: FakeCluster) -> None:
    code, out, err = cluster.ddpctl("attach")
    assert code == 0, err
    assert {f"[gpu{n}:{n}] attempt 2 on gpu{n}" for n in (0, 1)} <= {*out.splitlines()}
    assert [each["state"] for each in cluster.record["attempts"]] == ["FAILED", "SUCCEEDED"]
    assert (cluster.record["name"], cluster.record["adopted"]) == ("mine", False)


def test_logs_has_the_newest_attempt(cluster: FakeCluster) -> None:
    code, out, err = cluster.ddpctl("logs", "--attempt", "2")
    assert code == 0, err
    assert sorted(out.splitlines()) == [f"[gpu{n}:{n}] attempt 2 on gpu{n}" for n in (0, 1)]


def test_a_newer_attempt_is_asked_for_once_and_said_to_be_newer(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    ask = adopt.reported_nodes

    def counted(connections: Sequence[HostConnection], run_id: str = "") -> object:
        asked.append(run_id)
        return ask(connections, run_id)

    monkeypatch.setattr(adopt, "reported_nodes", counted)
    code, _, err = cluster.ddpctl("logs")
    run_id = cluster.record["run_id"]
    assert (code, asked) == (0, [run_id]), err
    assert f"{run_id}: this machine's record is out of date; gpu0 reports" in err
    assert "gpu0 reports attempt 2 on 2 nodes" in err
    assert "no record" not in err


def test_hosts_that_only_know_earlier_attempts_change_no_record(cluster: FakeCluster) -> None:
    assert cluster.ddpctl("logs")[0] == 0
    [file] = cluster.state.glob("ddpctl/runs/*/run.json")
    record = cluster.record
    record["attempts"].append({**record["attempts"][-1], "attempt": 3})
    file.write_text(json.dumps(record))
    _, _, err = cluster.ddpctl("logs")
    assert "record" not in err and cluster.record == record


def test_resume_is_refused_if_the_newest_attempt_succeeded(cluster: FakeCluster) -> None:
    code, _, err = cluster.ddpctl("resume")
    assert (code, "has already succeeded" in err) == (2, True), err
    code, _, err = cluster.ddpctl("resume", "--force")
    assert code == 0, err
    assert [each["attempt"] for each in cluster.record["attempts"]] == [1, 2, 3]
    assert [node.attempt for node in cluster.nodes] == [3, 3]
    assert "KEY" in cluster.nodes[0].arguments["environment"]


def test_resume_is_refused_if_the_newest_attempt_succeeded_on_one_host_alone(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine resumed the run without the second host."""
    cluster = fake_cluster("gpu0", "gpu1")
    for host in cluster:
        host.on_start = start
    assert cluster.launch()[0] == 1
    other = shutil.copytree(cluster.state, cluster.folder / "other")
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("XDG_STATE_HOME", str(other))
        assert cluster.ddpctl("resume", "--exclude", "gpu1")[0] == 0
    code, _, err = cluster.ddpctl("resume")
    assert (code, "has already succeeded" in err) == (2, True), err
    code, _, err = cluster.ddpctl("resume", "--force")
    assert code == 0, err
    assert {node.attempt for node in cluster.nodes} == {3}


def test_one_of_two_hosts_alone_is_not_believed(cluster: FakeCluster) -> None:
    cluster.hosts["gpu1"].reachable = False
    code, out, err = cluster.ddpctl("logs")
    assert (code, "attempt 2" in out) == (4, False), out
    assert "gpu0 reports attempt 2, which no other host confirms" in err


def test_a_record_from_the_hosts_has_the_name_of_the_run(cluster: FakeCluster) -> None:
    run_id = cluster.record["run_id"]
    cluster.forget()
    code, _, err = cluster.ddpctl("attach", run_id, "--hosts", cluster.hosts_file)
    assert (code, cluster.record["name"]) == (0, "mine"), err


def test_a_restart_by_this_machines_recorder_while_the_hosts_are_asked_changes_no_record(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command waits ten seconds for a dead host; meanwhile, a spare takes its place."""
    monkeypatch.setattr("launcher.start.restart.PAUSES_BY_LAUNCHER", (0.0, 0.0, 0.0))
    cluster = fake_cluster("gpu0", "gpu1", "gpu2", spares=["gpu3"], max_restarts=1)

    def gpu2_dies(node: FakeNode) -> None:
        if node.attempt == 2:
            start(node)
        elif node.node_rank == 2:
            cluster.hosts["gpu2"].reachable = False
            lost = {"kind": "host-lost", "message": "silent", "node_rank": 2}
            for other in cluster.nodes[:2]:
                other.event("stopping", reason=lost)
                other.end(1, reason=lost)

    for host in cluster:
        host.on_start = gpu2_dies
    code, _, err = cluster.launch()
    assert code == 0, err
    folder = run_folder(cluster.record["run_id"])
    before, after, hosts = folder.load(), folder.load(), folder.kept_cluster()
    del before.attempts[1:]
    folder.save(before)
    folder.keep_cluster(load(cluster.hosts_file))
    ask = adopt.reported_nodes

    def restarted(connections: Sequence[HostConnection], run_id: str = "") -> object:
        folder.keep_cluster(hosts)
        folder.save(after)
        return ask(connections, run_id)

    monkeypatch.setattr(adopt, "reported_nodes", restarted)
    code, out, err = cluster.ddpctl("logs", "--attempt", "2")
    assert code == 0, err
    assert sorted(out.splitlines()) == [
        f"[{host}:{rank}] attempt 2 on {host}" for rank, host in enumerate(after.hosts)
    ]
    assert (folder.load(), folder.kept_cluster().hosts) == (after, hosts.hosts)


def test_an_attempt_that_nobody_followed_to_its_end_is_not_live_after_the_next_one(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This machine was off. Another one has resumed the run without a host that was lost."""
    cluster = fake_cluster("gpu0", "gpu1", "gpu2")
    code, _, err = cluster.launch("--detach", "--name", "mine")
    assert code == 0, err
    *others, lost = cluster.nodes
    cluster.hosts["gpu2"].reachable = False
    for node in others:
        node.end(1)
    other = shutil.copytree(cluster.state, cluster.folder / "other")
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("XDG_STATE_HOME", str(other))
        code, _, err = cluster.ddpctl("resume", "--detach", "--exclude", "gpu2")
        assert code == 0, err
    cluster.hosts["gpu2"].reachable = True
    lost.end(1)
    code, _, err = cluster.ddpctl("logs", "mine")
    assert code == 0, err
    assert [each["state"] for each in cluster.record["attempts"]] == ["FAILED", "PENDING"]
    states = [node["state"] for node in cluster.record["attempts"][0]["nodes"]]
    assert states == ["UNKNOWN"] * 3  # the hosts report only the newest attempt's nodes
    code, out, err = cluster.ddpctl("ps", cluster.hosts_file)
    assert code == 0 and "gpu[0-1]\n" in out and "RUNNING" in out, out + err
