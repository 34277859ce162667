"""Commands that take a hosts file ask its spares too: a restart may have moved a node there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import pytest
from fakes import FakeCluster


@pytest.fixture
def cluster(fake_cluster: Callable[..., FakeCluster]) -> FakeCluster:
    """A run on host gpu0 and spare gpu2. Spare gpu3 is down."""
    cluster = fake_cluster("gpu0", "gpu1", spares=["gpu2", "gpu3"])
    code, _, err = cluster.ddpctl(
        "launch", "-H", "gpu0:0,gpu2:0", "--no-push", "--detach", "--", "a.py"
    )
    assert code == 0, err
    cluster.hosts["gpu3"].reachable = False
    return cluster


def test_ps_shows_a_node_on_a_spare(cluster: FakeCluster) -> None:
    code, out, err = cluster.ddpctl("ps", cluster.hosts_file, "--json")
    assert code == 0, err
    [run] = json.loads(out)["runs"]
    assert [node["host"] for node in run["nodes"]] == ["gpu0", "gpu2"]
    assert "spares that do not answer are left out: gpu3" in err


def test_ps_shows_a_recorded_live_run_whose_only_host_is_a_spare_that_is_down(
    cluster: FakeCluster,
) -> None:
    flags = ["-H", "gpu2:0", "--no-push", "--detach", "--", "a.py"]
    code, out, err = cluster.ddpctl("launch", *flags)
    assert code == 0, err
    run_id = out.strip()
    cluster.hosts["gpu2"].reachable = False
    code, out, err = cluster.ddpctl("ps", cluster.hosts_file, "--json")
    assert code == 4, err
    states = {run["run_id"]: run["state"] for run in json.loads(out)["runs"]}
    assert states.pop(run_id) == "UNKNOWN" and [*states.values()] == ["RUNNING"], out
    assert "spares that do not answer are left out: gpu3\n" in err
    assert "error: gpu2: no answer" in err


def test_kill_stops_a_node_on_a_spare(cluster: FakeCluster) -> None:
    code, _, err = cluster.ddpctl("kill", cluster.hosts_file, "--all", "--yes")
    assert code == 0, err
    assert cluster.hosts["gpu2"].nodes == {}


def test_kill_does_not_confirm_the_stop_of_a_node_on_a_spare_that_is_down(
    cluster: FakeCluster,
) -> None:
    cluster.hosts["gpu2"].reachable = False
    code, _, err = cluster.ddpctl("kill", cluster.hosts_file, "--all", "--yes")
    assert code == 6 and "error: gpu2: stop not confirmed: no answer" in err


def test_a_prune_deletes_what_is_unused_on_a_spare(cluster: FakeCluster) -> None:
    tree = cluster.hosts["gpu2"].home / ".ddpctl" / "datasets" / ("b" * 64)
    tree.mkdir(parents=True)
    os.utime(tree, (1e9, 1e9))
    code, _, err = cluster.ddpctl("push", cluster.hosts_file, "--prune", "-y")
    assert code == 0, err
    assert not tree.exists()
    assert "warning: spare gpu3: " in err
