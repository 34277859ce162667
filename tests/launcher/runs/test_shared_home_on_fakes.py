"""Hosts that share one home folder, and one that does not: each thing is done once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes import FakeCluster

from launcher.facts.shared_homes import find_shared_homes
from launcher.hosts import Host
from launcher.ssh.host_connection import connected

pytestmark = pytest.mark.slow  # most of these tests start several runs
Make = Callable[..., FakeCluster]


@pytest.fixture
def cluster(fake_cluster: Make) -> FakeCluster:
    """gpu0 and gpu1 share a home, gpu2 does not. Nodes end well at once."""
    made = fake_cluster("gpu0", "gpu1", "gpu2")
    made.share_home("gpu0", "gpu1")
    made.nodes_end(exit_code=0)
    return made


def asked(cluster: FakeCluster, word: str) -> list[str]:
    """The hosts that were sent a script with `word` in it."""
    return [h.name for h in cluster if any(word in " ".join(call) for call in h.asked)]


def shared(cluster: FakeCluster) -> Path:
    return cluster.hosts["gpu0"].home / ".ddpctl"


def test_another_machine_finds_each_node_on_its_own_host(cluster: FakeCluster) -> None:
    for host in cluster:
        host.on_start = lambda node: (node.say(f"on {node.host}", node.node_rank), node.end(0))
    assert cluster.launch()[0] == 0
    run_id = cluster.record["run_id"]
    cluster.forget()
    code, out, err = cluster.ddpctl("logs", run_id, "--hosts", cluster.hosts_file)
    assert code == 0, err
    assert sorted(line for line in out.splitlines() if "on gpu" in line) == [
        f"[gpu{rank}:{rank}] on gpu{rank}" for rank in range(3)
    ]


def test_killed_runs_are_listed_at_their_own_hosts(cluster: FakeCluster) -> None:
    for host in cluster:
        host.on_start = lambda node: None
    assert cluster.launch("--detach")[0] == 0
    assert cluster.ddpctl("kill")[0] == 0
    _, out, _ = cluster.ddpctl("ps", cluster.hosts_file, "--all", "--json")
    [run] = json.loads(out)["runs"]
    assert run["state"] == "CANCELLED"
    assert [node["host"] for node in run["nodes"]] == ["gpu0", "gpu1", "gpu2"]


def test_a_stop_on_one_host_does_not_cancel_the_attempts_of_the_others(
    cluster: FakeCluster,
) -> None:
    for host in cluster:
        host.on_start = lambda node: None
    assert cluster.launch("--detach")[0] == 0
    cluster.hosts["gpu1"].reachable = False
    assert cluster.ddpctl("kill")[0] == 6
    marked = {path.parent.parent.name for path in shared(cluster).rglob("cancelled")}
    assert marked == {"0"}


def test_fetch_reads_a_shared_folder_once(cluster: FakeCluster, tmp_path: Path) -> None:
    assert cluster.launch()[0] == 0
    for host in ("gpu0", "gpu2"):
        [output] = cluster.hosts[host].home.glob(".ddpctl/runs/*/output")
        (output / f"from-{host}").write_text(host)
    code, _, err = cluster.ddpctl("fetch", "--to", tmp_path / "here")
    assert code == 0, err
    assert asked(cluster, "sha256sum") == ["gpu0", "gpu2"]
    fetched = {path.name for path in (tmp_path / "here" / "output").iterdir()}
    assert fetched == {"from-gpu0", "from-gpu2"}


def test_resume_sends_a_checkpoint_once_per_file_system(cluster: FakeCluster) -> None:
    """And not to a host that has it already, through the home that it shares."""
    assert cluster.launch()[0] == 0
    [checkpoints] = cluster.hosts["gpu1"].home.glob(".ddpctl/runs/*/checkpoints")
    (checkpoints / "model.pt").write_text("weights")
    code, _, err = cluster.ddpctl("resume", "--force")
    assert code == 0, err
    assert asked(cluster, "sha256sum -c") == ["gpu0", "gpu2"]
    assert asked(cluster, "exec tar -x") == ["gpu2"]
    [there] = cluster.hosts["gpu2"].home.glob(".ddpctl/runs/*/checkpoints/model.pt")
    assert there.read_text() == "weights"


def test_clean_empties_a_shared_folder_once_and_proves_it(cluster: FakeCluster) -> None:
    assert cluster.launch()[0] == 0
    code, out, err = cluster.ddpctl("clean", cluster.hosts_file, "-y")
    assert code == 0, err
    assert [line.split()[0] for line in out.splitlines() if "/runs/" in line] == ["gpu0", "gpu2"]
    assert [line.split()[0] for line in out.splitlines() if "container" in line] == [
        "gpu0", "gpu1", "gpu2",
    ]  # fmt: skip
    assert err.count(": clean") == 3
    assert not shared(cluster).exists()
    assert not any(host.nodes for host in cluster)
    code, _, err = cluster.ddpctl("clean", cluster.hosts_file, "-y")
    assert (code, "no trace" in err) == (0, True)
    assert not shared(cluster).exists()  # looking for traces has left none


def test_clean_spares_a_run_that_an_unseen_host_may_still_write(cluster: FakeCluster) -> None:
    assert cluster.launch()[0] == 0
    attempt = shared(cluster) / "runs" / "20261122-101500-ab12" / "nodes" / "0" / "attempt-1"
    attempt.mkdir(parents=True)
    for name, text in {"host": "gpu9\n", "journal": "", "ballast": ""}.items():
        (attempt / name).write_text(text)
    code, _, err = cluster.ddpctl("clean", cluster.hosts_file, "-y")
    assert code == 6
    assert "gpu0: not cleaned: 20261122-101500-ab12 may be alive on gpu9" in err
    assert attempt.exists()
    assert not cluster.hosts["gpu2"].home.joinpath(".ddpctl").exists()
    (attempt / "ballast").unlink()  # as a supervisor does when it ends
    assert cluster.ddpctl("clean", cluster.hosts_file, "-y")[0] == 0
    assert not shared(cluster).exists()


def test_a_host_that_sees_nothing_shares_with_none(cluster: FakeCluster) -> None:
    with connected(map(Host, cluster.hosts)) as connections:
        first, second, third = connections
        assert find_shared_homes(connections) == [[first, second], [third]]
        cluster.hosts["gpu1"].install("ls", "#!/bin/sh\nexit 1\n")
        assert find_shared_homes(connections) == [[first], [second], [third]]
    assert not list(shared(cluster).glob(".shared*"))
