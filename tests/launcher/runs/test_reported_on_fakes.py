"""Hosts that disagree about a run's newest attempt."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes import FakeCluster

from launcher.engines.node_handle import NodeHandle
from launcher.look import stacks
from launcher.look.stacks import Answer
from launcher.runs.reported import agreed_attempt

Make = Callable[..., FakeCluster]


def report(cluster: FakeCluster, host: str, run_id: str, rank: int, attempt: int) -> None:
    """Let a host report another attempt of a run."""
    control = cluster.hosts[host].home / f".ddpctl/runs/{run_id}/nodes/{rank}/attempt-{attempt}"
    control.mkdir(parents=True)
    (control / "host").write_text(host)
    (control / "run.json").write_text(json.dumps({"hosts": [host]}))
    (control / "cancelled").touch()
    (control / "journal").touch()


@pytest.fixture
def cluster(fake_cluster: Make) -> FakeCluster:
    """Hosts that keep only the folders of a run that has succeeded."""
    made = fake_cluster("gpu0", "gpu1", "gpu2")
    for host in made:
        host.on_start = lambda node: (node.say(f"on {node.host}", node.node_rank), node.end(0))
    assert made.launch()[0] == 0
    for host in made:
        host.nodes.clear()
    return made


@pytest.mark.parametrize(
    ("newest", "agreed"), [([1], 1), ([2, 2, 1], 2), ([1, 9999], 1), ([1, 2, 9999, 2], 2)]
)
def test_the_newest_attempt_is_the_one_that_two_hosts_report(
    newest: list[int], agreed: int
) -> None:
    assert agreed_attempt(newest) == agreed


def shown(cluster: FakeCluster) -> set[tuple[str, int]]:
    code, out, err = cluster.ddpctl("ps", cluster.hosts_file, "--all", "--json")
    assert code == 0, err
    [run] = json.loads(out)["runs"]
    return {(node["host"], node["node_rank"]) for node in run["nodes"]}


def test_ps_shows_the_nodes_of_the_others_whatever_attempt_one_host_reports(
    cluster: FakeCluster,
) -> None:
    report(cluster, "gpu2", cluster.record["run_id"], rank=2, attempt=9999)
    assert shown(cluster) == {("gpu0", 0), ("gpu1", 1), ("gpu2", 2)}


def test_ps_leaves_out_a_host_that_the_run_has_left(cluster: FakeCluster) -> None:
    for rank in (0, 1):
        report(cluster, f"gpu{rank}", cluster.record["run_id"], rank, attempt=2)
    assert shown(cluster) == {("gpu0", 0), ("gpu1", 1)}


def test_stacks_are_of_one_attempt_on_all_hosts_whatever_attempt_one_host_reports(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    report(cluster, "gpu2", cluster.record["run_id"], rank=2, attempt=9999)

    def ask(member: NodeHandle, kind: str) -> Answer:
        assert member.place.control_dir.endswith("/attempt-1")
        return Answer(member.connection.name, member.place.node_rank, "starting")

    monkeypatch.setattr(stacks, "_ask", ask)
    code, out, err = cluster.ddpctl("stacks", "--json")
    assert code == 0, err
    document = json.loads(out)
    assert document["attempt"] == 1
    assert [node["host"] for node in document["nodes"]] == ["gpu0", "gpu1", "gpu2"]


def test_another_machine_does_not_adopt_a_part_of_a_run(cluster: FakeCluster) -> None:
    run_id = cluster.record["run_id"]
    cluster.forget()
    code, _, err = cluster.ddpctl("attach", run_id, "--hosts", "gpu0,gpu1")
    assert code == 2, err
    assert err.endswith(
        "error: -H: node 2 of the run is on none of these hosts; list all hosts of the run\n"
    )
    assert not cluster.state.joinpath("ddpctl", "runs", run_id, "run.json").exists()


def test_another_machine_adopts_the_attempt_that_the_hosts_agree_on(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    run_id = cluster.record["run_id"]
    report(cluster, "gpu1", run_id, rank=1, attempt=9999)
    cluster.forget()
    code, out, err = cluster.ddpctl("logs", run_id, "--hosts", cluster.hosts_file)
    assert code == 0, err
    assert sorted(out.splitlines()) == [f"[gpu{rank}:{rank}] on gpu{rank}" for rank in range(3)]
    assert "gpu1 reports attempt 9999, which no other host confirms" in err
    assert len(cluster.record["attempts"]) == 1
