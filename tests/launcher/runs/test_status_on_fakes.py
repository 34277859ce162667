"""`ps` on fake hosts: what the hosts' engines know, from any machine."""

from __future__ import annotations

import json
from collections.abc import Callable

from fakes import FakeCluster

Make = Callable[..., FakeCluster]


def test_a_machine_without_a_record_sees_the_same_runs(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    run_id = cluster.launch("--detach")[1].strip()
    cluster.forget()
    code, out, err = cluster.ddpctl("ps", cluster.hosts_file, "--json")
    assert code == 0, err
    [run] = json.loads(out)["runs"]
    assert (run["run_id"], run["state"], len(run["nodes"])) == (run_id, "RUNNING", 2)


def test_a_host_that_is_down_hides_no_other_and_exits_with_4(fake_cluster: Make) -> None:
    cluster = fake_cluster("gpu0", "gpu1", "gpu2")
    run_id = cluster.launch("--detach")[1].strip()
    cluster.hosts["gpu1"].reachable = False
    code, out, err = cluster.ddpctl("ps", cluster.hosts_file)
    assert code == 4
    assert run_id in out
    assert "gpu1" in err


def test_odd_labels_are_skipped_and_the_other_runs_are_shown(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    run_id = cluster.launch("--detach")[1].strip()
    cluster.nodes[1].arguments["labels"]["io.ddpctl.attempt"] = "abc"
    code, out, err = cluster.ddpctl("ps", cluster.hosts_file)
    assert code == 0, err
    assert run_id in out


def test_no_run_is_said_without_a_table(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    code, out, err = cluster.ddpctl("ps", cluster.hosts_file)
    assert (code, out) == (0, "")
    assert "no " in err
