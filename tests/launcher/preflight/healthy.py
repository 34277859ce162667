"""Two healthy hosts with four GPUs each; tests seed one fault at a time."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Network
from typing import Any

from launcher.engines.engine_info import EngineInfo, ImageInfo
from launcher.facts.facts import Facts
from launcher.facts.gpus import Gpu
from launcher.facts.hardware import Details, Disk
from launcher.facts.network import Address, Interface, IpRoute
from launcher.facts.nvidia import GpuState, Nvidia, Process
from launcher.hosts import Cluster, Host, Job
from launcher.preflight.machine import Machine

GIB = 2**20  # KiB
IMAGE = ImageInfo("sha256:aaa", ("sha256:l1", "sha256:l2"), "amd64", {"CUDA_VERSION": "12.4.1"})


def machine(rank: int = 0, name: str = "", **changes: Any) -> Machine:
    name = name or f"gpu{rank + 1}"
    made = Machine(
        name=name,
        ranks=(rank,),
        hosts=(Host(name),),
        facts=Facts(
            user="ubuntu",
            uid=1000,
            gid=1000,
            home="/home/ubuntu",
            hostname=name,
            kernel="Linux 6.8.0 x86_64",
            cores=64,
            ssh_server_ip=f"10.0.0.{rank + 1}",
            ssh_client_ip="10.0.0.100",
            addresses=(
                Address("127.0.0.1", "lo"),
                Address(f"10.0.0.{rank + 1}", "eth0"),
                Address("172.17.0.1", "docker0"),
            ),
            listening=frozenset({22}),
            infiniband=(),
            gpus=tuple(Gpu(i, f"GPU-{rank}-{i}", "NVIDIA H100", 81559) for i in range(4)),
            gpu_error=None,
            routes=(
                IpRoute(IPv4Network("10.0.0.0/24"), "", "eth0"),
                IpRoute(IPv4Network("0.0.0.0/0"), "10.0.0.254", "eth0"),
            ),
            interfaces=(
                Interface("lo", 65536, "unknown", 0),
                Interface("eth0", 1500, "up", 25000),
                Interface("docker0", 1500, "down", 0, "bridge"),
            ),
            details=Details(
                disks=(
                    Disk("/home/ubuntu/.ddpctl", "/home", 900 * GIB, 500 * GIB, 10**8),
                    Disk("/home/ubuntu", "/home", 900 * GIB, 500 * GIB, 10**8),
                    Disk("/var/lib/docker", "/", 900 * GIB, 500 * GIB, None),
                    Disk("/dev/shm", "/dev/shm", 500 * GIB, 500 * GIB, 10**8),
                ),
                memory_kib=1000 * GIB,
                memory_available_kib=900 * GIB,
                resolved=f"10.0.0.{rank + 1}",
                kernel_driver="550.54.15",
                open_driver=True,
                toolkit=True,
                nvidia=Nvidia(
                    driver="550.54.15",
                    cuda=(12, 4),
                    gpus=tuple(GpuState(i, "Enabled", "Disabled") for i in range(4)),
                ),
            ),
        ),
        engine=EngineInfo(
            version="27.3.1",
            storage="overlay2",
            cgroup_driver="cgroupfs",
            root="/var/lib/docker",
            runtimes=frozenset({"runc", "nvidia"}),
            image=IMAGE,
        ),
    )
    return replace(made, **changes)


def with_facts(made: Machine, **changes: Any) -> Machine:
    return replace(made, facts=replace(made.facts, **changes))


def with_details(made: Machine, **changes: Any) -> Machine:
    return with_facts(made, details=replace(made.details, **changes))


def with_engine(made: Machine, **changes: Any) -> Machine:
    assert made.engine is not None
    return replace(made, engine=replace(made.engine, **changes))


def with_nvidia(made: Machine, **changes: Any) -> Machine:
    return with_details(made, nvidia=replace(made.details.nvidia, **changes))


def with_process(made: Machine, index: int, process: Process) -> Machine:
    """With a process on the GPU of that index."""
    gpus = [
        replace(gpu, processes=(process,)) if gpu.index == index else gpu
        for gpu in made.details.nvidia.gpus
    ]
    return with_nvidia(made, gpus=tuple(gpus))


def cluster(*hosts: Host, **job: Any) -> Cluster:
    return Cluster(
        hosts=hosts or (Host("gpu1"), Host("gpu2")), job=Job(**{"master_port": 29500, **job})
    )
