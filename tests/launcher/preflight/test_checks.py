"""Each check: its fault, seeded, gives its one line and remedy; a healthy cluster gives none."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from builders import node_status
from healthy import (
    GIB,
    IMAGE,
    cluster,
    machine,
    with_details,
    with_engine,
    with_facts,
    with_nvidia,
    with_process,
)
from hypothesis import given
from hypothesis import strategies as st

from launcher.engines.engine_info import Capabilities, ImageInfo, parse_capabilities
from launcher.engines.status import NodeStatus
from launcher.errors import DockerUnavailable
from launcher.facts.gpus import Gpu
from launcher.facts.hardware import Disk
from launcher.facts.network import Interface
from launcher.facts.nvidia import GpuState, Process
from launcher.facts.rdma import Gid, RdmaPort
from launcher.hosts import Cluster, Host
from launcher.preflight import check as run
from launcher.preflight.findings import Finding, failure, in_order, lines, warning
from launcher.preflight.fleet import Fleet
from launcher.preflight.machine import Machine
from launcher.preflight.survey_report import COLUMNS, table
from launcher.terminal.table import table as drawn


def one(found: list[Finding]) -> Finding:
    assert len(found) == 1, found
    assert found[0].what and found[0].remedy
    assert "\n" not in lines(found)[0]
    return found[0]


def judge(
    *machines: Machine,
    of: Cluster | None = None,
    here: ImageInfo | None = IMAGE,
) -> list[Finding]:
    """What all checks say of these machines."""
    return run.judge(Fleet(of or cluster(), machines, here))


def test_a_healthy_cluster_gives_no_finding() -> None:
    assert judge(machine(0), machine(1)) == []


def test_a_missing_device_of_the_job_is_named_with_its_key() -> None:
    wanted = cluster()
    wanted = replace(wanted, job=replace(wanted.job, devices=("/dev/fuse:/dev/f:r",)))
    found = one(judge(with_details(machine(0), missing=("/dev/fuse",)), machine(1), of=wanted))
    assert found.what == "/dev/fuse does not exist, but job.devices names it"
    assert found.remedy == "load its driver on that host, or fix job.devices"


def bare(rank: int, gpus: Any) -> Machine:
    """A host without GPUs and driver."""
    made = replace(machine(rank), hosts=(Host(f"gpu{rank + 1}", gpus=gpus),))
    made = with_details(with_facts(made, gpus=()), toolkit=False, kernel_driver=None)
    return with_nvidia(made, driver=None, cuda=None, gpus=())


def test_healthy_cpu_hosts_give_no_finding() -> None:
    assert judge(bare(0, 0), bare(1, 0)) == []


def test_hosts_with_amd_gpus_need_nothing_of_nvidias() -> None:
    hosts = [
        with_facts(
            with_engine(bare(rank, "all"), runtimes=frozenset({"runc"})),
            gpus=(Gpu(0, f"GPU-{rank}", "AMD MI300X", None, "amd"),),
        )
        for rank in (0, 1)
    ]
    assert judge(*hosts) == []


def test_a_host_where_gpus_all_finds_none_is_a_cpu_node_and_says_so() -> None:
    finding = one(judge(bare(0, 0), bare(1, "all")))
    assert (finding.severity, finding.host, finding.check) == ("warning", "gpu2", "gpus")
    assert finding.what == "found no GPU, so this is a CPU node"
    assert "gpus: 0" in finding.remedy
    own = Gpu(0, "", "AMD raphael", 512, "amd", integrated=True)
    finding = one(judge(bare(0, 0), with_facts(bare(1, "all"), gpus=(own,))))
    assert "found only an integrated GPU" in finding.what


def rail(
    node: int, state: str = "ACTIVE", gbits: int = 400, version: str = "RoCE v2", name: str = "0"
) -> RdmaPort:
    gid = Gid(3, f"10.0.0.{node + 1}", version)
    return RdmaPort(f"mlx5_{name}:1", state, is_ethernet=True, gbits=gbits, gids=(gid,))


def with_podman(made: Machine, version: str = "5.4.2", *, rootless: bool = True) -> Machine:
    """The machine with a Podman that lacks nothing."""
    about = {"BuildahVersion": "1", "ServerVersion": version}
    about |= {"SecurityOptions": ["name=rootless"] if rootless else []}
    made = with_details(made, subuids=True, cdi=True, toolkit=False)
    return with_engine(made, version=version, can=parse_capabilities(about), runtimes=frozenset())


def test_healthy_hosts_with_podman_give_no_finding() -> None:
    assert judge(with_podman(machine(0)), with_podman(machine(1), rootless=False)) == []


# One fault each: (how it is seeded, severity, check, words of the line, words of the remedy)

FAULTS = {
    "dockerd stopped": (
        lambda m: replace(m, engine_error=DockerUnavailable("the daemon is down", "start it"), engine=None),
        ("failure", "docker", "the daemon is down", "start it"),
    ),
    "old docker": (
        lambda m: with_engine(m, version="18.09.7", can=Capabilities(version=(18, 9))),
        ("failure", "docker", "Docker 18.09.7 is too old", "20.10"),
    ),
    "slow storage": (
        lambda m: with_engine(m, storage="vfs"),
        ("warning", "docker", "uses the vfs storage driver", "overlay2"),
    ),
    "old podman": (
        lambda m: replace(with_podman(m, "4.3.1"), hosts=(Host("gpu1", gpus=0),)),
        ("failure", "docker", "Podman 4.3.1 is too old", "Podman 4.9"),
    ),
    "no ids for the users of a container": (
        lambda m: with_details(with_podman(m), subuids=False),
        ("failure", "docker", "ubuntu has no ids in /etc/subuid", "--add-subuids"),
    ),
    "session that takes its containers along": (
        lambda m: with_details(with_podman(m), lingers=False),
        ("failure", "docker", "containers end when ubuntu logs out", "enable-linger ubuntu"),
    ),
    "no CDI specification": (
        lambda m: with_details(with_podman(m), cdi=False),
        ("failure", "gpus", "no CDI specification for its GPUs", "nvidia-ctk cdi generate"),
    ),
    "podman that ignores requests for GPUs": (
        lambda m: with_podman(m, "5.3.2"),
        ("failure", "gpus", "the API of Podman 5.3.2 cannot give GPUs to containers", "Podman 5.4"),
    ),
    "driver updated under the kernel": (
        lambda m: with_facts(m, gpus=(), gpu_error="Driver/library version mismatch"),
        ("failure", "gpus", "updated while its kernel module stayed loaded", "reboot"),
    ),
    "libraries newer than the module": (
        lambda m: with_details(m, kernel_driver="535.1.1"),
        ("failure", "gpus", "kernel 535.1.1, libraries 550.54.15", "reboot"),
    ),
    "nvidia-smi fails": (
        lambda m: with_facts(m, gpus=(), gpu_error="couldn't communicate with the driver"),
        ("failure", "gpus", "couldn't communicate", "fix the NVIDIA driver"),
    ),
    "GPU id that is not there": (
        lambda m: replace(m, hosts=(Host("gpu1", gpus=(0, 1, 2, 7)),)),
        ("failure", "gpus", "the host has no GPU 7, only 0-3", "fix `gpus:`"),
    ),
    "no toolkit": (
        lambda m: with_engine(with_details(m, toolkit=False), runtimes=frozenset({"runc"})),
        ("failure", "gpus", "container toolkit is not installed", "nvidia-container-toolkit"),
    ),
    "fabric manager": (
        lambda m: with_details(m, nvswitches=4),
        ("failure", "gpus", "4 NVSwitches, but no fabric manager is running", "systemctl enable"),
    ),
    "MIG": (
        lambda m: with_nvidia(m, gpus=(GpuState(0, "Enabled", "Enabled"),)),
        ("failure", "gpus", "MIG is enabled on GPU 0", "nvidia-smi -mig 0"),
    ),
    "busy GPU": (
        lambda m: replace(
            with_process(m, 2, Process(4711, 30000, "python", "eve", "c" * 64)),
            run_nodes=(replace(status("night-1", 1, "running"), container="c" * 64),),
        ),
        ("failure", "gpus", "GPU 2 is in use: python (pid 4711, user eve, run night-1) holds "
         "30000 MiB", "`ddpctl kill night-1`"),
    ),
    "fewer GPUs than others": (
        lambda m: with_facts(m, gpus=m.facts.gpus[:2]),
        ("warning", "gpus", "2 GPUs, while other hosts have 4", "set gpus: 2 if that is right"),
    ),
    "other GPU model": (
        lambda m: with_facts(m, gpus=tuple(replace(g, name="NVIDIA A100") for g in m.facts.gpus)),
        ("warning", "gpus", "NVIDIA A100 80 GiB, while other hosts have NVIDIA H100 80 GiB",
         "same GPUs"),
    ),
    "uncorrectable errors": (
        lambda m: sick(m, uncorrectable=3),
        ("warning", "gpus", "GPUs 1-2: uncorrectable ECC errors", "--gpu-reset"),
    ),
    "memory repair": (
        lambda m: sick(m, repair_pending=True),
        ("warning", "gpus", "GPUs 1-2: reset needed before faulty memory can be", "reboot"),
    ),
    "memory repair that failed": (
        lambda m: sick(m, repair_failed=True),
        ("warning", "gpus", "GPUs 1-2: faulty memory could not be replaced", "RMA"),
    ),
    "an error in the kernel's log": (
        lambda m: with_nvidia(m, gpus=(GpuState(2, "Enabled", "N/A", pci="0000:3b:00"),),
                              xids=(("0000:3b:00", 31), ("0000:3b:00", 95), ("0000:3b:00", 95))),
        ("warning", "gpus", "GPU 2 (0000:3b:00) has reported Xid 95 since the host booted: uncontained",
         "--gpu-reset"),
    ),
    "a lost GPU in the kernel's log": (
        lambda m: with_nvidia(m, xids=(("0000:af:00", 79),)),
        ("warning", "gpus", "a lost GPU at 0000:af:00 has reported Xid 79", "seated properly"),
    ),
    "a hot GPU": (
        lambda m: sick(m, slowed=True),
        ("warning", "gpus", "GPUs 1-2: throttled because of temperature", "cooling"),
    ),
    "a narrow PCIe link": (
        lambda m: sick(m, narrow=True),
        ("warning", "gpus", "GPUs 1-2: fewer PCIe lanes in use", "reseat"),
    ),
    "other ECC": (
        lambda m: with_nvidia(m, gpus=tuple(GpuState(i, "Disabled", "") for i in range(4))),
        ("warning", "gpus", "ECC Disabled, while other hosts have ECC Enabled", "nvidia-smi -e"),
    ),
    "CUDA too new": (
        lambda m: with_engine(m, image=replace(IMAGE, env={"CUDA_VERSION": "13.0.1"})),
        ("failure", "gpus", "the image needs CUDA 13.0, but the driver supports only 12.4", "driver"),
    ),
    "another image": (
        lambda m: with_engine(m, image=replace(IMAGE, id="sha256:bbb", layers=("sha256:x",))),
        ("warning", "image", "its ddpctl-trainer:latest is a different image (bbb)",
         "ddpctl push HOSTS --image"),
    ),
    "another processor": (
        lambda m: with_facts(m, kernel="Linux 6.8.0 aarch64"),
        ("failure", "image", "the image is built for amd64, but the host is arm64", "linux/arm64"),
    ),
    "full home": (
        lambda m: with_details(m, disks=(Disk("/home/ubuntu", "/home", GIB, 100, 9**9),)),
        ("failure", "disk", "only 0 MiB free on /home for data and checkpoints",
         "free up space in /home on that host: `ddpctl push --prune` deletes"),
    ),
    "nearly full home": (
        lambda m: with_details(m, disks=(Disk("/home/ubuntu", "/home", GIB, 2 * GIB, 9**9),)),
        ("warning", "disk", "only 2.0 GiB free on /home", "free up space"),
    ),
    "no inodes": (
        lambda m: with_details(m, disks=(Disk("/home/ubuntu", "/home", GIB, 9 * GIB, 12),)),
        ("failure", "disk", "only 12 inodes free on /home", "remove small files"),
    ),
    "full docker root": (
        lambda m: with_details(m, disks=(Disk("/var/lib/docker", "/mnt/d", GIB, 9000, None),)),
        ("failure", "disk", "only 9 MiB free on /mnt/d for images under /var/lib/docker", "free up space"),
    ),
    "folder of job.mounts": (
        lambda m: with_details(m, missing=("/scratch",)),
        ("failure", "disk", "/scratch does not exist, but job.mounts names it", "job.mounts"),
    ),
    "home that cannot be written": (
        lambda m: with_details(m, home_error="Read-only file system"),
        ("failure", "disk", "~/.ddpctl is not writable: Read-only", "permissions"),
    ),
    "no memory left": (
        lambda m: with_details(m, memory_available_kib=1000),
        ("warning", "memory", "only 1 MiB of memory is available", "stop other programs"),
    ),
    "no uverbs": (
        lambda m: with_facts(m, rdma_ports=(rail(0),)),
        ("warning", "network", "no /dev/infiniband/uverbs0", "ib_uverbs"),
    ),
    "InfiniBand down": (
        lambda m: with_facts(m, infiniband=("uverbs0",), rdma_ports=(rail(0, state="DOWN"),)),
        ("warning", "network", "no InfiniBand or RoCE port is active (mlx5_0:1 DOWN)", "cable"),
    ),
    "memlock": (
        lambda m: with_engine(
            with_facts(with_details(m, memlock="8192"), infiniband=("uverbs0",),
                       rdma_ports=(rail(0),)),
            can=Capabilities(rootless=True)),
        ("warning", "memory", "memlock is 8192 KiB", "limits.conf"),
    ),
    "clock": (
        lambda m: with_facts(m, clock_skew=-42.0, clock_error=0.05),
        ("warning", "clock", "its clock is 42.0 s behind the others", "chrony"),
    ),
    "own name on loopback": (
        lambda m: with_details(m, resolved="127.0.1.1"),
        ("warning", "network", "its own name (gpu1) resolves to 127.0.1.1", "/etc/hosts"),
    ),
    "interface that is not there": (
        lambda m: replace(m, hosts=(Host("gpu1", interface="ib0"),)),
        ("failure", "network", "interface ib0 does not exist; the host has eth0, docker0",
         "fix `interface:`"),
    ),
    "interface that is down": (
        lambda m: replace(m, hosts=(Host("gpu1", interface="docker0"),)),
        ("failure", "network", "interface docker0 is down", "ip link set docker0 up"),
    ),
    "port held": (
        lambda m: with_details(with_facts(m, listening=frozenset({22, 29500})),
                               holder="python serve.py (user eve, pid 99)"),
        ("failure", "ports", "port 29500 is taken by python serve.py (user eve, pid 99)",
         "master_port: auto"),
    ),
    "port promised to a run": (
        lambda m: replace(m, run_nodes=(status("night-1", 0, "running"),)),
        ("failure", "ports", "port 29500 is taken by run night-1 (eve@head)", "launch with --wait"),
    ),
    "GPU of another run": (
        lambda m: replace(
            with_process(m, 2, Process(4711, 30000, "python", "eve", "c" * 64)),
            run_nodes=(
                replace(with_gpu(m, status("night-1", 1, "running")), container="c" * 64),
            ),
        ),
        ("failure", "gpus", "run night-1 (eve@head) has GPU 2", "--wait"),
    ),
    "GPU that a run waits for": (
        lambda m: replace(m, run_nodes=(with_gpu(m, status("night-1", 1, "waiting")),)),
        ("failure", "gpus", "run night-1 (eve@head) is waiting for GPU 2", "--wait"),
    ),
    "part of a run left": (
        lambda m: replace(m, run_nodes=(status("old", 1, "running"), status("old", 0, "exited"))),
        ("warning", "runs", "node 1 of run old (eve@head) is still running, but another node has ended",
         "`ddpctl kill old`"),
    ),
    "paused": (
        lambda m: replace(m, run_nodes=(status("old", 1, "paused"),)),
        ("warning", "runs", "node 1 of run old (eve@head) is paused", "`ddpctl kill old`"),
    ),
}  # fmt: skip


def sick(made: Machine, **fault: Any) -> Machine:
    """GPUs 1 and 2 have the fault."""
    gpus = made.details.nvidia.gpus
    return with_nvidia(
        made, gpus=tuple(replace(g, **fault) if g.index in (1, 2) else g for g in gpus)
    )


def with_gpu(made: Machine, node: NodeStatus) -> NodeStatus:
    return replace(node, gpus=(made.facts.gpus[2].uuid,))


@pytest.mark.parametrize("process", ["in a container", "without one"])
def test_a_launch_that_waits_is_not_refused_what_other_runs_have(process: str) -> None:
    container, run_id = ("c" * 64, "") if process == "in a container" else ("", "night-1")
    node = replace(with_gpu(machine(0), status("night-1", 0, "running")), container=container)
    busy = Process(4711, 30000, "python", "eve", container, run_id)
    taken = replace(with_process(machine(0), 2, busy), run_nodes=(node,))
    seen = Fleet(cluster(), [taken, machine(1)], IMAGE)
    assert {f.check for f in run.judge(seen)} == {"gpus", "ports"}
    assert run.judge(replace(seen, waits=True)) == []


def status(run_id: str, rank: int, state: str) -> NodeStatus:
    code = 0 if state == "exited" else None
    return node_status(
        run_id, rank, state, host="gpu1", owner="eve@head", exit_code=code, master_port="29500"
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
    bare = [with_engine(machine(i), image=None) for i in range(2)]
    assert judge(*bare) == []  # push will bring it
    finding = one(judge(*bare, here=None))
    assert (finding.severity, finding.host, finding.check) == ("failure", "gpu1", "image")
    assert "ddpctl image build --trainer" in finding.remedy  # the trainer's image is in no registry
    of = replace(cluster(), job=replace(cluster().job, image="pytorch/pytorch:2.8.0"))
    finding = one(judge(*bare, of=of, here=None))
    assert (finding.severity, finding.host, finding.check) == ("warning", "gpu1", "image")
    assert "the hosts will pull it" in finding.what


def test_an_image_for_another_processor_is_found_without_an_engine_there() -> None:
    odd = replace(with_facts(machine(1), kernel="Linux 6.8.0 aarch64"), engine=None)
    odd = replace(
        odd, engine_error=DockerUnavailable("the Docker daemon is not running", "start it")
    )
    assert [(f.host, f.check) for f in judge(machine(0), odd)] == [
        ("gpu2", "docker"),
        ("gpu2", "image"),
    ]


def test_hosts_that_differ_in_the_image_with_none_here_to_settle_it() -> None:
    odd = with_engine(machine(1), image=replace(IMAGE, layers=("sha256:x",)))
    finding = one(judge(machine(0), odd, machine(2), here=None))
    assert (finding.severity, finding.host) == ("failure", "gpu2")


def test_gpus_asked_for_on_a_host_without() -> None:
    hosts = (Host("gpu1", gpus=2), Host("gpu2", gpus=2))
    bare = replace(with_facts(machine(0), gpus=()), hosts=hosts[:1])
    two = replace(machine(1), hosts=hosts[1:])
    finding = one(judge(bare, two, of=cluster(*hosts)))
    assert "the hosts file asks for gpus: 2, but the host has none" in finding.what


def test_a_gpu_that_two_entries_use_names_both_hosts() -> None:
    """gpu2 is another name of gpu1, where the driver counts the GPUs from the other end."""
    same = tuple(replace(gpu, index=3 - gpu.index) for gpu in machine(0).facts.gpus)
    mine = replace(machine(0), hosts=(Host("gpu1", gpus=(0, 1)),))
    alias = replace(with_facts(machine(1), gpus=same), hosts=(Host("gpu2", gpus=(1, 2)),))
    finding = one(judge(mine, alias))
    assert (finding.severity, finding.host, finding.check) == ("failure", "gpu2", "gpus")
    assert finding.what == "GPU 2 is also GPU 1 of gpu1 (GPU-0-1)"
    apart = replace(alias, hosts=(Host("gpu2", gpus=(0, 1)),))
    assert judge(mine, apart) == []


def test_gpus_without_a_uuid_are_not_taken_for_the_same_gpu() -> None:
    hosts = [
        with_facts(made, gpus=tuple(replace(gpu, uuid="[N/A]") for gpu in made.facts.gpus))
        for made in (machine(0), machine(1))
    ]
    assert judge(*hosts) == []


def test_more_processes_than_gpus() -> None:
    finding = one(judge(machine(0), of=cluster(nproc_per_node=8)))
    assert finding.what == "nproc_per_node is 8, but the node has only 4 GPUs"


def test_no_gpu_on_one_of_the_hosts() -> None:
    finding = one(judge(machine(0), with_facts(machine(1), gpus=())))
    assert (finding.host, finding.severity) == ("gpu2", "failure")
    assert "found no GPU, while other hosts have 4" in finding.what


def test_another_driver_version_and_the_gpus_of_others_are_left_alone() -> None:
    other = with_details(with_nvidia(machine(2), driver="535.1"), kernel_driver="535.1")
    finding = one(judge(machine(0), machine(1), other))
    assert "driver 535.1, while other hosts have driver 550.54.15" in finding.what
    busy = with_process(machine(0), 3, Process(1, 9000, "x"))
    mine = replace(busy, hosts=(Host("gpu1", gpus=(0, 1)),))
    assert judge(mine, of=cluster(Host("gpu1"))) == []
    assert one(judge(busy)).host == "gpu1"


def test_shared_memory() -> None:
    small = with_details(machine(0), disks=(Disk("/dev/shm", "/dev/shm", 65536, 65536, None),))
    assert judge(small) == []  # a container has a /dev/shm of its own
    found = judge(replace(small, engine=None), of=cluster(engine="process"))
    assert "/dev/shm is only 64 MiB" in one(found).what
    tiny = with_details(machine(0), memory_kib=GIB)
    found = judge(tiny, of=cluster(shm_size=2**40))
    assert "shm_size 1024.0 GiB exceeds the host's memory, 1.0 GiB" in one(found).what
    assert judge(tiny) == []


def test_the_clock_is_measured_against_all_and_within_its_own_error() -> None:
    late = [with_facts(machine(i), clock_skew=-30.0) for i in range(3)]
    assert judge(*late) == []  # this machine's clock is ahead
    assert judge(with_facts(machine(0), clock_skew=3.0, clock_error=5.0), machine(1)) == []
    assert "42.0 s ahead" in one(judge(with_facts(machine(0), clock_skew=42.0))).what
    apart = [with_facts(machine(i), clock_skew=skew) for i, skew in enumerate((-5.0, -5.0, 0.0))]
    assert {found.what for found in judge(*apart)} == {"its clock is 5.0 s behind the others"}


def test_a_port_for_root_only() -> None:
    finding = one(judge(machine(0), of=cluster(master_port=80)))
    assert "only root may use port 80" in finding.what
    finding = one(judge(machine(0), of=cluster(master_port=80, user="root")))
    assert "NET_BIND_SERVICE may use port 80" in finding.what
    able = cluster(master_port=80, user="root", cap_add=("NET_BIND_SERVICE",))
    assert judge(machine(0), of=able) == []
    without = cluster(master_port=80, user="root", engine="process")
    assert judge(replace(machine(0), engine=None), of=without) == []


@given(st.text(), st.text())
def test_a_finding_is_one_line_of_printable_text(what: str, remedy: str) -> None:
    (line,) = lines([failure(what, remedy).at("gpu1", "ssh")])
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", line)
    assert len(line) < 1000


def test_any_port_will_do_for_auto() -> None:
    held = with_facts(machine(0), listening=frozenset({29500}))
    assert judge(held, of=cluster(master_port="auto")) == []


def test_live_runs_and_cleanly_ended_ones_are_no_strays() -> None:
    nodes = (status("a", 0, "running"), status("a", 1, "running"), status("b", 0, "exited"))
    leftover = replace(machine(0), run_nodes=nodes)
    assert judge(leftover, of=cluster(master_port="auto")) == []


def test_one_host_alone_may_call_itself_loopback() -> None:
    there = with_details(machine(0), resolved="127.0.1.1")
    assert judge(there) == []
    assert one(judge(there, machine(1))).check == "network"


def test_another_mtu() -> None:
    jumbo = with_facts(machine(2), interfaces=(Interface("eth0", 9000, "up", 0),))
    found = judge(machine(0), machine(1), jumbo)
    assert one(found).what == "MTU 9000 on eth0, while other hosts have 1500"


@pytest.mark.parametrize(
    ("odd", "what"),
    [
        ({}, ""),
        ({"state": "DOWN"}, "RDMA ports up: 1, while other hosts have 2 (mlx5_0:1 DOWN)"),
        (
            {"gbits": 100},
            "its RDMA ports run at 100/400 Gb/s, while those of other hosts run at 400",
        ),
        (
            {"version": "IB/RoCE v1"},
            "the GID of its address is of type IB/RoCE v1, while other hosts have RoCE v2",
        ),
    ],
)
def test_rdma_ports_that_differ(odd: dict[str, Any], what: str) -> None:
    hosts = [
        with_facts(
            machine(node),
            infiniband=("uverbs0",),
            rdma_ports=(
                rail(node, **(odd if node == 2 else {})),
                replace(rail(node, name="1"), gids=()),
            ),
        )
        for node in range(3)
    ]
    hosts.append(machine(3))  # has none
    found = judge(*hosts)
    assert [(f.host, f.severity, f.what) for f in found] == (
        [("gpu3", "warning", what)] if what else []
    )


def test_findings_are_ordered_and_tabled() -> None:
    found = [
        warning("w", "r").at("b", "clock"),
        failure("f", "r").at("b", "ports"),
        warning("w", "r").at("a", "disk"),
        failure("f", "r").at("b", "ports"),
        failure("f", "r").at("c", "ssh"),
    ]
    assert [(f.host, f.check) for f in in_order(found, ["a", "b", "c"])] == [
        ("b", "ports"),
        ("c", "ssh"),
        ("a", "disk"),
        ("b", "clock"),
    ]
    rows = table(["a", "b", "c"], found)
    assert rows[0] == ["a", *["ok"] * 4, "warn", *["ok"] * 5]
    assert rows[1][-2] == "FAIL"
    assert rows[2] == ["c", "FAIL", *["-"] * 9]
    (row,) = table(["a"], [], left_out=["docker", "image"])
    assert dict(zip(COLUMNS, row[1:], strict=True)) == {
        check: "-" if check in ("docker", "image") else "ok" for check in COLUMNS
    }
    (row,) = table(["a"], [failure("f", "r").at("a", "docker")])
    assert row == ["a", "ok", "FAIL", "ok", "-", *["ok"] * 5, "-"]


def test_the_table_of_failures_fits_80_columns() -> None:
    findings = [failure("f", "r").at("gpu12.lab", check) for check in COLUMNS if check != "docker"]
    text = drawn(table(["gpu12.lab"], findings), ["HOST", *map(str.upper, COLUMNS)])
    assert max(map(len, text.splitlines())) <= 80


def test_hosts_with_the_same_finding_share_a_line() -> None:
    found = [warning("w", "r").at(f"gpu{i}", "clock") for i in (1, 2, 3, 7)]
    assert lines([*found, failure("f", "r").at("gpu2", "disk")]) == [
        "warning: gpu[1-3,7]: clock: w; r",
        "failure: gpu2: disk: f; r",
    ]


def test_an_image_counts_for_all_nodes_of_one_account_but_not_for_other_accounts() -> None:
    """Rootless Podman keeps the images of each user apart."""
    hosts = [Host("gpu1"), Host("gpu1"), Host("gpu2", user="ann"), Host("gpu2", user="bob")]
    one_account = replace(machine(0), ranks=(0, 1), hosts=tuple(hosts[:2]))
    two_accounts = replace(machine(1), ranks=(2, 3), hosts=tuple(hosts[2:]))
    without_image = replace(with_engine(machine(2), image=None), ranks=(4,))
    fleet = Fleet(cluster(*hosts), [one_account, two_accounts, without_image])
    assert run.Survey([], {}, fleet).images == {0: IMAGE, 1: IMAGE}
