"""`ddpctl clean` on real hosts: it removes only its own containers and folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cluster import TRAINER_IMAGE, Cluster, Home

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def test_every_trace_goes_and_nothing_of_others(
    cluster: Cluster, home: Home, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("print('done')\n")
    hosts = cluster.hosts_yaml(tmp_path / "hosts.yaml", workdir=str(code), nproc_per_node=1)
    # a stranger's of another account, and one that only shares the engine
    create = ["docker", "create", "--network=host", "--entrypoint=true"]
    label = "--label=io.ddpctl.run-id=other"
    theirs = ["--name=theirs", label, "-v/home/other/.ddpctl/runs/other:/output"]
    cluster.exec("node1", *create, *theirs, TRAINER_IMAGE)
    cluster.exec("node1", *create, "--name=plain", TRAINER_IMAGE)

    done = home.ddpctl("launch", hosts, "--no-check", "--", "train.py")
    assert done.returncode == 0, done.stderr
    listed = home.ddpctl("clean", hosts)
    assert listed.returncode == 0, listed.stderr
    for rank, node in enumerate(cluster.nodes):
        assert (
            f"{node}  container  ddpctl-{home.record()['run_id']}-{rank}  exited" in listed.stdout
        )
    assert "theirs" not in listed.stdout and "plain" not in listed.stdout

    cleaned = home.ddpctl("clean", hosts, "-y", "--json")
    assert cleaned.returncode == 0, cleaned.stderr
    assert all(host["clean"] for host in json.loads(cleaned.stdout)["hosts"])
    for node in cluster.nodes:
        left = cluster.exec(node, "docker", "ps", "-a", "--format={{.Names}}").split()
        assert sorted(left) == (["plain", "theirs"] if node == "node1" else [])
        assert ".ddpctl" not in cluster.exec(node, "ls", "-A", "/home/ddp").split()
