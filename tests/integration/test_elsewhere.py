"""A run does not need its launching machine: A starts one and loses its state; B does everything else.

Two of the three hosts share their ~/.ddpctl.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from cluster import Cluster, Home, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

SCRIPT = """
import os, pathlib, time
rank = os.environ["RANK"]
for i in range(50):
    print("line", i, flush=True)
checkpoint = pathlib.Path(os.environ["DDPCTL_CHECKPOINT_DIR"], "model.txt")
if os.environ["DDPCTL_RESUME"] == "0":
    if rank == "1":
        checkpoint.write_text("weights")
    result = "begun"
else:
    result = checkpoint.read_text()
pathlib.Path(os.environ["DDPCTL_OUTPUT_DIR"], f"result-{rank}.txt").write_text(f"{result} {rank}")
if os.environ["DDPCTL_RESUME"] == "0":
    while True:
        time.sleep(0.2)
"""


def test_launched_on_a_machine_that_is_lost_and_lived_with_on_another(
    cluster: Cluster, home: Home, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(SCRIPT)
    cluster.share_home("node0", "node1")
    hosts = cluster.hosts_yaml(
        tmp_path / "hosts.yaml", workdir=str(code), command=["train.py"], nproc_per_node=1
    )
    launched = home.ddpctl("launch", hosts, "--detach")
    assert launched.returncode == 0, launched.stderr
    run_id = launched.stdout.strip()
    shutil.rmtree(home.state)

    other = cluster.home_at(tmp_path / "machine B")
    seen = other.ddpctl("ps", hosts, "--json")
    assert seen.returncode == 0, seen.stderr
    [run] = json.loads(seen.stdout)["runs"]
    assert (run["run_id"], run["state"]) == (run_id, "RUNNING")

    written = "ls /home/ddp/.ddpctl/runs/*/output/result-* 2>/dev/null || true"
    for node, count in {"node0": 2, "node1": 2, "node2": 1}.items():
        until(
            lambda node=node, count=count: (
                len(cluster.exec(node, "sh", "-c", written).split()) == count
            ),
            60,
            f"{node} has worked",
        )
    killed = other.ddpctl("kill", run_id, "--hosts", hosts, "-y")
    assert killed.returncode == 0, killed.stderr
    assert cluster.idle()
    attached = other.ddpctl("attach", run_id, "--hosts", hosts)
    assert attached.returncode == 7, attached.stderr

    said = other.ddpctl("logs", run_id, "--hosts", hosts)
    assert said.returncode == 0, said.stderr
    for rank, node in enumerate(cluster.nodes):
        mine = [line for line in said.stdout.splitlines() if line.startswith(f"[{node}:{rank}] ")]
        assert mine == [f"[{node}:{rank}] line {i}" for i in range(50)]

    refused = other.ddpctl("resume", run_id)
    assert refused.returncode == 2 and "--hosts HOSTS" in refused.stderr
    resumed = other.ddpctl("resume", run_id, "--hosts", hosts)
    assert resumed.returncode == 0, resumed.stderr
    assert "resuming from the newest checkpoint on node0" in resumed.stderr
    fetched = other.ddpctl("fetch", run_id, "--to", tmp_path / "results")
    assert fetched.returncode == 0, fetched.stderr
    found = {path.name: path.read_text() for path in (tmp_path / "results").rglob("result-*")}
    assert found == {f"result-{rank}.txt": f"weights {rank}" for rank in range(3)}

    cleaned = other.ddpctl("clean", hosts, "-y", "--json")
    assert cleaned.returncode == 0, cleaned.stderr
    rows = json.loads(cleaned.stdout)["hosts"]
    assert [row["clean"] for row in rows] == [True] * 3
    assert [len(row["containers"]) for row in rows] == [1] * 3
    assert [bool(row["parts"]) for row in rows] == [True, False, True]
    for node in cluster.nodes:
        left = "ls -A /home/ddp/.ddpctl 2>/dev/null; docker ps -aq"
        assert cluster.exec(node, "sh", "-c", left) == ""
