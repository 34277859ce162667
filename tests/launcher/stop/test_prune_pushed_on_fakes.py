"""`ddpctl push --prune` while another command uses the same trees."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes import FakeCluster, FakeHost

from launcher.hosts import Host
from launcher.push.sender import INSPECT
from launcher.ssh.host_connection import HostConnection
from launcher.stop import prune_pushed

Make = Callable[..., FakeCluster]
USED, UNUSED = "a" * 64, "b" * 64


def with_trees(host: FakeHost) -> Path:
    """Give the host two old datasets, and return their folder."""
    trees = host.home / ".ddpctl" / "datasets"
    for name in (USED, UNUSED):
        (trees / name).mkdir(parents=True)
        os.utime(trees / name, (1e9, 1e9))
    return trees


def test_a_tree_that_a_launch_looks_up_while_the_user_reads_the_list_stays(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster("gpu0")
    trees, connection = with_trees(cluster.hosts["gpu0"]), HostConnection(Host("gpu0"))

    def looked_up(*_: object, **__: object) -> bool:
        return b"have dataset" in connection.script(INSPECT, USED, "", "").stdout

    monkeypatch.setattr("launcher.terminal.ask.can_ask", lambda: True)
    monkeypatch.setattr("typer.confirm", looked_up)
    assert cluster.ddpctl("push", cluster.hosts_file, "--prune")[0] == 0
    assert [path.name for path in trees.iterdir()] == [USED]
    assert b"have dataset" not in connection.script(INSPECT, UNUSED, "", "").stdout
    assert not (trees / UNUSED).exists()


def test_a_tree_whose_removal_is_interrupted_is_not_used_again(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster("gpu0")
    trees = with_trees(cluster.hosts["gpu0"])
    with monkeypatch.context() as interrupted:
        interrupted.setattr(prune_pushed, "REMOVE", "rm() { exit 1; }\n" + prune_pushed.REMOVE)
        assert cluster.ddpctl("push", cluster.hosts_file, "--prune", "-y")[0] == 5
    assert sorted(path.name[:10] for path in trees.iterdir()) == [".removed.a", UNUSED[:10]]
    assert cluster.ddpctl("push", cluster.hosts_file, "--prune", "-y")[0] == 0
    assert [*trees.iterdir()] == []


def test_what_is_deleted_is_reported_also_if_another_host_does_not_answer(
    fake_cluster: Make,
) -> None:
    cluster = fake_cluster("gpu0", "gpu1")
    with_trees(cluster.hosts["gpu0"])
    cluster.hosts["gpu1"].reachable = False
    words = ("push", cluster.hosts_file, "--prune", "-y", "--json")
    code, out, err = cluster.ddpctl(*words)
    assert (code, json.loads(out)["removed"], len(json.loads(out)["unused"])) == (4, True, 2)
    assert "deleted 2 folders" in err and "error: gpu1: " in err
    code, out, err = cluster.ddpctl(*words)
    assert (code, json.loads(out)["removed"], json.loads(out)["unused"]) == (4, False, [])
    assert "nothing deleted" in err
