"""Who uses which GPU, from what nvidia-smi and the engines of the hosts say."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import FakeCluster

from launcher.engines.status import ContainerState, NodeStatus
from launcher.facts.nvidia import GpuUse, Process, parse_use
from launcher.look.ps_gpus import folded, joined, summary
from launcher.supervisor.events import Usage, document

Make = Callable[..., FakeCluster]
ROOT = Path(__file__).parents[3]
CONTAINER = "c" * 64


def gpu(
    index: int, use: int = 97, used: int = 62000, *processes: Process, host: str = "a"
) -> GpuUse:
    return GpuUse(index, f"GPU-{host}-{index}", "H100", use, used, 81920, processes)


def node(host: str, *gpus: str, run_id: str = "r1", rank: int = 0) -> NodeStatus:
    return NodeStatus(
        1, rank, host, f"ddpctl-{run_id}-{rank}", ContainerState.RUNNING, None, run_id,
        nnodes=2, owner="ann@x", started=100.0, gpus=gpus, container=CONTAINER,
    )  # fmt: skip


def lines(gpus: dict[str, list[GpuUse]], *statuses: NodeStatus) -> list[str]:
    return [" ".join(cells[:-1]) for cells in folded(joined(gpus, statuses))]


def test_a_run_is_known_by_its_container_by_its_environment_and_by_its_claim() -> None:
    ours = Process(1, 100, "python", "ann", CONTAINER)
    local = Process(2, 100, "python", "ann", "", "r1")
    stranger = Process(3, 100, "jupyter", "bob", "d" * 64, "r9", 50.0)
    gpus = {
        "a": [
            gpu(0, 97, 62000, ours),
            gpu(1, 97, 62000, local),
            gpu(2, 0, 3),
            gpu(3, 9, 900, stranger),
        ]
    }
    rows = joined(gpus, [node("a", "GPU-a-2")])
    assert [row.node.run_id if row.node else None for row in rows] == ["r1", "r1", "r1", None]
    assert summary(rows) == "4 GPUs on 1 host: 3 used by 1 run, 1 by other processes, 0 free"
    assert lines(gpus, node("a", "GPU-a-2")) == [
        "3 a 9% 1/80 GiB jupyter (pid 3) bob",
        "2 a 0% 0/80 GiB r1 ann@x",
        "0-1 a 97% 61/80 GiB r1 ann@x",
    ]


def test_a_stranger_on_the_gpu_of_a_run_comes_first_and_free_ones_come_last() -> None:
    stranger = Process(7, 900, "python", "bob", "", "", 60.0)
    gpus = {"a": [gpu(0, 0, 3), gpu(1), gpu(2, 99, 70000, stranger), gpu(3, 1, 900)]}
    assert lines(gpus, node("a", "GPU-a-1", "GPU-a-2")) == [
        "2 a 99% 68/80 GiB r1 and python (pid 7) ann@x",
        "3 a 1% 1/80 GiB a process that the driver does not show -",
        "1 a 97% 61/80 GiB r1 ann@x",
        "0 a 0% 0/80 GiB free -",
    ]


def test_a_machine_under_two_names_counts_once() -> None:
    here = replace(gpu(0), boot_id="1")
    assert len(joined({"a": [here], "b": [here]}, [])) == 1


def test_a_host_that_names_the_gpus_of_another_does_not_hide_them() -> None:
    good, claimed = replace(gpu(0), boot_id="1"), gpu(0, 0, 3)
    for evil in (claimed, replace(claimed, boot_id="2")):
        rows = joined({"evil": [evil], "good": [good]}, [node("good", "GPU-a-0")])
        assert [(row.host, row.is_free) for row in rows] == [("evil", True), ("good", False)]


def test_64_hosts_with_8_gpus_are_a_few_lines() -> None:
    hosts = [f"gpu{n:02}" for n in range(1, 65)]
    gpus = {h: [gpu(i, 95 + i % 3, 61000 + 100 * i, host=h) for i in range(8)] for h in hosts}
    gpus["gpu07"][3] = gpu(3, 0, 2000, host="gpu07")
    gpus["gpu64"] = [gpu(i, 0, 3, host="gpu64") for i in range(8)]
    claims = [node(h, *(g.uuid for g in gpus[h]), rank=n) for n, h in enumerate(hosts[:-1])]
    assert lines(gpus, *claims) == [
        "3 gpu07 0% 2/80 GiB r1 ann@x",
        "0-7 gpu[01-06,08-63] 95-97% 60/80 GiB r1 ann@x",
        "0-2,4-7 gpu07 95-97% 60/80 GiB r1 ann@x",
        "0-7 gpu64 0% 0/80 GiB free -",
    ]


def test_rows_that_a_host_makes_up_are_skipped_and_move_no_cursor() -> None:
    text = "gpu, 0, GPU-1, 5, 6, [N/A], H\x1b[2J\ngpu, 1, ../x, 5, 6, 7, H\napp, GPU-1, 7, 5\n"
    text += f"7\teve\t{CONTAINER}\t../../run\t99\tpython\n"
    [found] = parse_use(text)
    assert (found.name, found.total) == ("H", None)
    assert found.processes == (Process(7, 5, "python", "eve", CONTAINER, "", 99.0),)


NVIDIA_SMI = """#!/bin/sh
case $1 in
--query-gpu=*) echo "0, GPU-1, 93, 61000, 81920, NVIDIA H100"; echo "1, GPU-2, 0, 3, 81920, NVIDIA H100" ;;
--query-compute-apps=*) echo "GPU-1, %d, 60000" ;;
esac
"""


def test_ps_shows_gpus_and_their_processes_on_the_hosts(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster("gpu0")
    has_nvidia_smi(cluster, monkeypatch)
    code, out, err = cluster.ddpctl("ps", cluster.hosts_file)
    assert code == 0, err
    first, head, stranger, free = out.splitlines()
    assert first == "2 GPUs on 1 host: 0 used by 0 runs, 1 by other processes, 1 free"
    assert head.split() == ["GPUS", "ON", "USE", "MEMORY", "USED", "BY", "OWNER", "SINCE"]
    assert f"(pid {os.getpid()})" in stranger and stranger.rstrip().endswith("Z")
    assert free.split()[:3] == ["1", "gpu0", "0%"]
    printed = json.loads(cluster.ddpctl("ps", cluster.hosts_file, "--json")[1])
    schema = json.loads((ROOT / "docs" / "schema" / "ps.json").read_text())
    assert set(printed["gpus"][0]) == set(schema["properties"]["gpus"]["items"]["required"])
    used, idle = printed["gpus"]
    assert (used["host"], used["utilization"], used["free"], idle["free"]) == (
        "gpu0",
        93,
        False,
        True,
    )
    assert used["others"][0]["pid"] == os.getpid()


def test_a_gpu_of_a_run_that_is_about_to_start_is_not_free(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster("gpu0")
    cluster.launch("--detach")
    [node] = cluster.nodes
    node.state = "created"
    node.arguments["labels"]["io.ddpctl.gpus"] = "GPU-2"
    has_nvidia_smi(cluster, monkeypatch)
    first = cluster.ddpctl("ps", cluster.hosts_file)[1].splitlines()[0]
    assert first == "2 GPUs on 1 host: 1 used by 1 run, 1 by other processes, 0 free"


def has_nvidia_smi(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give all hosts two GPUs, of which this test process uses the first."""
    tools = cluster.folder / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(NVIDIA_SMI % os.getpid())
    (tools / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    hosts = json.loads(Path(cluster.hosts_file).read_text())
    Path(cluster.hosts_file).write_text(json.dumps({**hosts, "defaults": {"gpus": "all"}}))


def test_ps_shows_the_progress_of_a_live_run(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    run_id = cluster.launch("--detach")[1].strip()
    output = cluster.hosts["gpu0"].home / ".ddpctl" / "runs" / run_id / "output"
    output.mkdir(parents=True, exist_ok=True)
    start = {"kind": "start", "attempt": 1, "total_steps": 400, "steps_per_epoch": 100}
    train = {"kind": "train", "epoch": 1, "step": 120}
    (output / "metrics.jsonl").write_text(f"{json.dumps(start)}\n{json.dumps(train)}\n")
    row = cluster.ddpctl("ps", cluster.hosts_file)[1].splitlines()[1]
    assert row.split()[:4] == [run_id, "RUNNING", "1", "2/2"]
    assert "epoch 1/4  step 120/400  gpu[0-1]" in row


def test_ps_names_the_node_with_the_rank_that_the_trainer_calls_slow(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    run_id = cluster.launch("--detach")[1].strip()
    for node in range(2):
        run = cluster.hosts[f"gpu{node}"].home / ".ddpctl" / "runs" / run_id
        usage = run / "nodes" / str(node) / "attempt-1" / "usage.json"
        usage.write_text(json.dumps(document(Usage(1.0, ranks=(2 * node, 2 * node + 1)))))
    (cluster.hosts["gpu0"].home / ".ddpctl/runs" / run_id / "output").mkdir(exist_ok=True)
    train = {"kind": "train", "step": 120, "ranks": {"slow": {"3": 1.6, "x": 1, "4": "y"}}}
    metrics = cluster.hosts["gpu0"].home / ".ddpctl/runs" / run_id / "output" / "metrics.jsonl"
    metrics.write_text(json.dumps(train) + "\n")
    rows = cluster.ddpctl("ps", cluster.hosts_file, "--nodes")[1].splitlines()[1:3]
    assert "slow: rank 3 at 1.6 times the median step time" in rows[0] and "gpu1" in rows[0]
    assert "running" in rows[1]
    [listed] = json.loads(cluster.ddpctl("ps", cluster.hosts_file, "--json")[1])["runs"]
    assert [bool(node["slow"]) for node in listed["nodes"]] == [False, True]
    usage.write_text('{"kind": "usage", "cores": "many"}')  # node 1's
    rows = cluster.ddpctl("ps", cluster.hosts_file, "--nodes")[1].splitlines()[1:3]
    assert "slow" not in "".join(rows)
