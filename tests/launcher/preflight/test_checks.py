"""Each check: its fault, seeded, gives its one line and remedy; a healthy cluster gives none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from healthy import (
    GIB,
    IMAGE,
    cluster,
    machine,
    with_details,
    with_docker,
    with_facts,
    with_nvidia,
)

from launcher.engines.base import NodeStatus
from launcher.facts.hardware import Disk, Holder
from launcher.facts.network import Interface
from launcher.facts.nvidia import GpuProcess, GpuState
from launcher.hosts import Cluster, Host
from launcher.preflight import (
    check_docker,
    check_gpus,
    check_image,
    check_ports,
    check_resources,
    reach_routes,
    run,
)
from launcher.preflight.findings import Finding, failure, in_order, table, warning
from launcher.preflight.machine import Machine


def one(found: list[Finding]) -> Finding:
    assert len(found) == 1, found
    assert found[0].what and found[0].remedy
    assert "\n" not in found[0].line()
    return found[0]


def judge(*machines: Machine, of: Cluster | None = None) -> list[Finding]:
    return run.judge(list(machines), of or cluster(), IMAGE)


def test_a_healthy_cluster_gives_no_finding() -> None:
    assert judge(machine(0), machine(1)) == []


def test_healthy_cpu_hosts_give_no_finding() -> None:
    hosts = (Host("gpu1", gpus=0), Host("gpu2"))
    bare = [
        with_nvidia(
            with_details(with_facts(replace(machine(i), hosts=(hosts[i],)), gpus=()), toolkit=()),
            driver=None,
            cuda=None,
            gpus=(),
        )
        for i in range(2)
    ]
    assert judge(*bare, of=cluster(*hosts)) == []


# One fault each: (how it is seeded, severity, check, words of the line, words of the remedy)

FAULTS = {
    "key refused": (
        lambda m: replace(m, ssh_error="gpu1: the key was refused; add it", facts=None,
                          details=None, docker=None),
        ("failure", "ssh", "the key was refused", "add it"),
    ),
    "dockerd stopped": (
        lambda m: replace(m, docker_error="gpu1: the daemon is down; start it", docker=None),
        ("failure", "docker", "the daemon is down", "start it"),
    ),
    "old docker": (
        lambda m: with_docker(m, version="18.09.7"),
        ("failure", "docker", "Docker 18.09.7 is too old", "20.10"),
    ),
    "slow storage": (
        lambda m: with_docker(m, storage="vfs"),
        ("warning", "docker", "storage driver is vfs", "overlay2"),
    ),
    "driver updated under the kernel": (
        lambda m: with_facts(m, gpus=(), gpu_error="Driver/library version mismatch"),
        ("failure", "gpus", "updated under the running kernel", "reboot"),
    ),
    "libraries newer than the module": (
        lambda m: with_details(m, kernel_driver="535.1.1"),
        ("failure", "gpus", "kernel 535.1.1, libraries 550.54.15", "reboot"),
    ),
    "nvidia-smi fails": (
        lambda m: with_facts(m, gpus=(), gpu_error="couldn't communicate with the driver"),
        ("failure", "gpus", "couldn't communicate", "mend the NVIDIA driver"),
    ),
    "GPU id that is not there": (
        lambda m: replace(m, hosts=(Host("gpu1", gpus=(0, 1, 2, 7)),)),
        ("failure", "gpus", "GPU 7 does not exist; the host has 0, 1, 2, 3", "correct gpus:"),
    ),
    "no toolkit": (
        lambda m: with_docker(with_details(m, toolkit=()), runtimes=frozenset({"runc"})),
        ("failure", "gpus", "container toolkit is not installed", "nvidia-container-toolkit"),
    ),
    "fabric manager": (
        lambda m: with_details(m, nvswitches=4),
        ("failure", "gpus", "4 NVSwitches and no running fabric manager", "systemctl enable"),
    ),
    "MIG": (
        lambda m: with_nvidia(m, gpus=(GpuState(0, "Enabled", "Enabled", 4),)),
        ("failure", "gpus", "MIG is on for GPU 0", "nvidia-smi -mig 0"),
    ),
    "busy GPU": (
        lambda m: with_docker(
            with_nvidia(m, processes=(GpuProcess(2, 4711, "python", 30000, "eve", "c" * 64),)),
            containers={"c" * 64: "night-1"},
        ),
        ("failure", "gpus", "GPU 2 is in use: python (pid 4711, user eve, run night-1) holds "
         "30000 MiB", "`ddpctl kill night-1`"),
    ),
    "fewer GPUs than others": (
        lambda m: with_facts(m, gpus=m.facts.gpus[:2]),
        ("failure", "gpus", "2 GPUs, and other nodes have 4", "nproc_per_node"),
    ),
    "other GPU model": (
        lambda m: with_facts(m, gpus=tuple(replace(g, name="NVIDIA A100") for g in m.facts.gpus)),
        ("warning", "gpus", "NVIDIA A100 80 GiB, and other hosts have NVIDIA H100 80 GiB",
         "same GPUs"),
    ),
    "other ECC": (
        lambda m: with_nvidia(m, gpus=tuple(GpuState(i, "Disabled", "", 0) for i in range(4))),
        ("warning", "gpus", "ECC Disabled, and other hosts have ECC Enabled", "nvidia-smi -e"),
    ),
    "CUDA too new": (
        lambda m: with_docker(m, image=replace(IMAGE, env={"CUDA_VERSION": "13.0.1"})),
        ("failure", "gpus", "the image is for CUDA 13.0, the driver runs up to 12.4", "driver"),
    ),
    "another image": (
        lambda m: with_docker(m, image=replace(IMAGE, id="sha256:bbb", layers=("sha256:x",))),
        ("warning", "image", "another image has the name ddpctl-trainer:latest (bbb)",
         "ddpctl push HOSTS --image"),
    ),
    "another processor": (
        lambda m: with_facts(m, kernel="Linux 6.8.0 aarch64"),
        ("failure", "image", "the image is for amd64, the host is arm64", "linux/arm64"),
    ),
    "full home": (
        lambda m: with_details(m, disks=(Disk("/home/ubuntu", "/home", GIB, 100, 9**9),)),
        ("failure", "disk", "0 MiB free on /home for data and checkpoints", "free space on /home"),
    ),
    "nearly full home": (
        lambda m: with_details(m, disks=(Disk("/home/ubuntu", "/home", GIB, 2 * GIB, 9**9),)),
        ("warning", "disk", "only 2.0 GiB free on /home", "free space"),
    ),
    "no inodes": (
        lambda m: with_details(m, disks=(Disk("/home/ubuntu", "/home", GIB, 9 * GIB, 12),)),
        ("failure", "disk", "12 inodes free on /home", "remove small files"),
    ),
    "full docker root": (
        lambda m: with_details(m, disks=(Disk("/var/lib/docker", "/mnt/d", GIB, 9000, None),)),
        ("failure", "disk", "9 MiB free on /mnt/d for images under /var/lib/docker", "free space"),
    ),
    "folder of job.mounts": (
        lambda m: with_details(m, missing=("/scratch",)),
        ("failure", "disk", "/scratch, which job.mounts names, does not exist", "job.mounts"),
    ),
    "home that cannot be written": (
        lambda m: with_details(m, home_error="Read-only file system"),
        ("failure", "disk", "~/.ddpctl cannot be written: Read-only", "permissions"),
    ),
    "no memory left": (
        lambda m: with_details(m, memory_available_kib=1000),
        ("warning", "memory", "only 1 MiB of memory are available", "end what uses it"),
    ),
    "no uverbs": (
        lambda m: with_details(m, infiniband_ports=(("mlx5_0 port 1", "ACTIVE"),)),
        ("warning", "network", "no /dev/infiniband/uverbs0", "ib_uverbs"),
    ),
    "InfiniBand down": (
        lambda m: with_details(m, infiniband_ports=(("mlx5_0 port 1", "DOWN"),),
                               infiniband_devices=("uverbs0",)),
        ("warning", "network", "no InfiniBand port is active (mlx5_0 port 1 DOWN)", "cable"),
    ),
    "memlock": (
        lambda m: with_docker(
            with_details(m, memlock="8192", infiniband_ports=(("mlx5_0 port 1", "ACTIVE"),),
                         infiniband_devices=("uverbs0",)),
            security=("name=rootless",)),
        ("warning", "memory", "memlock is limited to 8192 KiB", "limits.conf"),
    ),
    "clock": (
        lambda m: with_facts(m, clock_skew=-42.0, clock_error=0.05),
        ("warning", "clock", "its clock is 42.0 s behind the others", "chrony"),
    ),
    "own name on loopback": (
        lambda m: with_details(m, resolved="127.0.1.1"),
        ("warning", "network", "its own name gpu1 stands for 127.0.1.1", "/etc/hosts"),
    ),
    "interface that is not there": (
        lambda m: replace(m, hosts=(Host("gpu1", interface="ib0"),)),
        ("failure", "network", "interface ib0 does not exist; the host has eth0, docker0",
         "correct interface:"),
    ),
    "interface that is down": (
        lambda m: replace(m, hosts=(Host("gpu1", interface="docker0"),)),
        ("failure", "network", "interface docker0 is down", "ip link set docker0 up"),
    ),
    "port held": (
        lambda m: with_details(with_facts(m, listening=frozenset({22, 29500})),
                               holder=Holder("eve", 99, "python serve.py")),
        ("failure", "ports", "port 29500 is taken by python serve.py (user eve, pid 99)",
         "master_port: auto"),
    ),
    "port promised to a run": (
        lambda m: with_docker(m, nodes=(status("night-1", 0, "running"),)),
        ("failure", "ports", "port 29500 is taken by run night-1 of eve@head", "auto"),
    ),
    "part of a run left": (
        lambda m: with_docker(m, nodes=(status("old", 1, "running"), status("old", 0, "exited"))),
        ("warning", "runs", "node 1 of run old (eve@head) still runs and others have ended",
         "`ddpctl kill old`"),
    ),
    "paused": (
        lambda m: with_docker(m, nodes=(status("old", 1, "paused"),)),
        ("warning", "runs", "node 1 of run old (eve@head) is paused", "`ddpctl kill old`"),
    ),
}  # fmt: skip


def status(run_id: str, rank: int, state: str) -> NodeStatus:
    return NodeStatus(
        run_id=run_id,
        name="",
        attempt=1,
        node_rank=rank,
        nnodes=2,
        owner="eve@head",
        host="gpu1",
        handle=f"ddpctl-{run_id}-{rank}",
        state=state,
        exit_code=0 if state == "exited" else None,
        master_port="29500",
    )


@pytest.mark.parametrize("fault", FAULTS)
def test_a_seeded_fault_gives_its_one_line(fault: str) -> None:
    seed, (severity, check, what, remedy) = FAULTS[fault]
    # Three hosts, so that it is clear which one differs from the others.
    hosts = (Host("gpu1"), Host("gpu2"), Host("gpu3"))
    gpus_said = seed(machine(0)).hosts[0].gpus
    others = [machine(i) for i in (1, 2)]
    if fault == "GPU id that is not there":
        assert len(gpus_said) == 4
    finding = one(judge(seed(machine(0)), *others, of=cluster(*hosts)))
    assert (finding.severity, finding.host, finding.check) == (severity, "gpu1", check)
    assert what in finding.what
    assert remedy in finding.remedy


def test_an_image_that_is_nowhere() -> None:
    bare = [with_docker(machine(i), image=None) for i in range(2)]
    assert judge(*bare) == []  # push will bring it
    finding = one(check_image.check_image(bare, cluster(), None))
    assert (finding.severity, finding.check) == ("failure", "image")
    assert "on no host and not on this machine" in finding.what


def test_hosts_that_differ_in_the_image_with_none_here_to_settle_it() -> None:
    odd = with_docker(machine(1), image=replace(IMAGE, layers=("sha256:x",)))
    finding = one(check_image.check_image([machine(0), odd, machine(2)], cluster(), None))
    assert (finding.severity, finding.host) == ("failure", "gpu2")


def test_gpus_asked_for_on_a_host_without() -> None:
    bare = replace(with_facts(machine(0), gpus=()), hosts=(Host("gpu1", gpus=2),))
    finding = one(check_gpus.check_requested(bare, cluster()))
    assert "gpus: 2 is asked for, and no GPU is there" in finding.what


def test_more_processes_than_gpus() -> None:
    finding = one(check_gpus.check_requested(machine(0), cluster(nproc_per_node=8)))
    assert finding.what == "4 GPUs for nproc_per_node 8"


def test_no_gpu_on_one_of_the_hosts() -> None:
    found = check_gpus.check_alike([machine(0), with_facts(machine(1), gpus=())], cluster())
    assert one(found).host == "gpu2"
    assert "no GPU was found, and other hosts have 4" in found[0].what


def test_another_driver_version_and_the_gpus_of_others_are_left_alone() -> None:
    found = check_gpus.check_alike(
        [machine(0), machine(1), with_nvidia(machine(2), driver="535.1")], cluster()
    )
    assert "driver 535.1, and other hosts have driver 550.54.15" in one(found).what
    busy = with_nvidia(machine(0), processes=(GpuProcess(3, 1, "x", 9000),))
    mine = replace(busy, hosts=(Host("gpu1", gpus=(0, 1)),))
    assert check_gpus.check_busy(mine) == []
    assert one(check_gpus.check_busy(busy)).host == "gpu1"


def test_shared_memory() -> None:
    small = with_details(machine(0), disks=(Disk("/dev/shm", "/dev/shm", 65536, 65536, None),))
    job = cluster(Host("local"), engine="process").job
    assert "/dev/shm holds 64 MiB" in one(check_resources.check_memory(small, job)).what
    tiny = with_details(machine(0), memory_kib=GIB)
    found = check_resources.check_memory(tiny, cluster(shm_size=2**40).job)
    assert "shm_size 1024.0 GiB is more than its 1.0 GiB" in one(found).what
    assert check_resources.check_memory(tiny, cluster().job) == []


def test_the_clock_is_measured_against_all_and_within_its_own_error() -> None:
    late = [with_facts(machine(i), clock_skew=-30.0) for i in range(3)]
    assert check_resources.check_clocks(late, cluster()) == []  # it is this machine that is ahead
    unsure = with_facts(machine(0), clock_skew=3.0, clock_error=5.0)
    assert check_resources.check_clocks([unsure, machine(1), machine(2)], cluster()) == []


def test_a_port_for_root_only() -> None:
    finding = one(check_ports.check_master_port([machine(0)], cluster(master_port=80)))
    assert "port 80 is for root only" in finding.what
    assert check_ports.check_master_port([machine(0)], cluster(master_port=80, user="root")) == []


def test_any_port_will_do_for_auto() -> None:
    held = with_facts(machine(0), listening=frozenset({29500}))
    assert check_ports.check_master_port([held], cluster(master_port="auto")) == []


def test_runs_that_go_on_or_have_ended_whole_are_no_leftovers() -> None:
    nodes = (status("a", 0, "running"), status("a", 1, "running"), status("b", 0, "exited"))
    assert check_ports.check_leftovers([with_docker(machine(0), nodes=nodes)]) == []


def test_one_host_alone_may_call_itself_loopback() -> None:
    there = with_details(machine(0), resolved="127.0.1.1")
    assert reach_routes.check_interfaces(there, alone=True) == []
    assert len(reach_routes.check_interfaces(there, alone=False)) == 1


def test_another_mtu() -> None:
    jumbo = with_details(machine(2), interfaces=(Interface("eth0", 9000, "up", 0, False),))
    on_eth0 = reach_routes.Route("10.0.0.1", "eth0", "")
    found = reach_routes.check_mtus([machine(0), machine(1), jumbo], [on_eth0] * 3)
    assert one(found).what == "MTU 9000 on eth0, and other hosts have 1500"


def test_an_error_of_one_line_becomes_what_and_remedy() -> None:
    assert check_docker.split("gpu1: a; b; do c", "gpu1") == ("a; b", "do c")
    assert check_docker.split("gpu1: nothing said", "gpu1") == ("nothing said", "look at the host")


def test_findings_are_ordered_and_tabled() -> None:
    found = [
        warning("b", "clock", "w", "r"),
        failure("b", "ports", "f", "r"),
        warning("a", "disk", "w", "r"),
        failure("b", "ports", "f", "r"),
    ]
    assert [(f.host, f.check) for f in in_order(found, ["a", "b", "c"])] == [
        ("b", "ports"),
        ("a", "disk"),
        ("b", "clock"),
    ]
    rows = table(["a", "b", "c"], found, unseen=["c"])
    assert rows[0] == ["a", *["ok"] * 4, "warning", *["ok"] * 5]
    assert rows[1][-2] == "FAILURE"
    assert set(rows[2][1:]) == {"-"}
    (row,) = table(["a"], [failure("a", "docker", "f", "r")], unseen=[])
    assert row == ["a", "ok", "FAILURE", "ok", "-", *["ok"] * 5, "-"]
