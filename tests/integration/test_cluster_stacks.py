"""`ddpctl stacks` on three hosts: it names the rank that the others wait for, and the run continues."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from cluster import TRAINER_IMAGE, Cluster, Home, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

SCRIPT = """
import os, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
value, gate = torch.ones(1000), os.path.join(os.environ["DDPCTL_OUTPUT_DIR"], "go")
if dist.get_rank() == 3:
    while not os.path.exists(gate):
        time.sleep(0.1)
dist.all_reduce(value)
print("sum", int(value[0]), flush=True)
dist.barrier()
dist.destroy_process_group()
"""
OUTPUT = "/home/ddp/.ddpctl/runs/{}/output/go"


def test_the_rank_that_the_others_wait_for_is_named_and_the_run_goes_on(
    cluster: Cluster, home: Home, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(SCRIPT)
    hosts = cluster.hosts_yaml(
        tmp_path / "hosts.yaml",
        image=TRAINER_IMAGE,
        workdir=str(code),
        command=["train.py"],
        nproc_per_node=2,
    )
    launched = home.ddpctl("launch", hosts, "--detach", "--no-check")
    assert launched.returncode == 0, launched.stderr
    run_id = launched.stdout.strip()

    def waiting() -> bool:
        told = home.ddpctl("stacks", "--json", timeout=60)
        assert told.returncode == 0, told.stderr
        groups = json.loads(told.stdout)["groups"]  # importing torch can also split them so
        return [g["ranks"] for g in groups] == [
            [0, 1, 2, 4, 5],
            [3],
        ] and "all_reduce" in told.stdout

    until(waiting, 60, "five ranks wait for the sixth")
    shutil.rmtree(home.state)  # the launching machine is lost; another one asks
    other = cluster.home_at(tmp_path / "machine B")
    shown = other.ddpctl("stacks", run_id, "--hosts", hosts)
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[-1].startswith("rank 3 of node1 is not where the other ranks are: at train.py:")
    assert "0-2,4-5 (5)  node[0-2]" in lines
    assert any(line.endswith("in <module>: dist.all_reduce(value)") for line in lines)

    cluster.exec("node1", "touch", OUTPUT.format(run_id))
    attached = other.ddpctl("attach", run_id)
    assert attached.returncode == 0, attached.stderr
    said = [line for line in attached.stdout.splitlines() if " sum " in line]
    assert sorted(said) == sorted(f"[node{rank // 2}:{rank}] sum 6" for rank in range(6))
