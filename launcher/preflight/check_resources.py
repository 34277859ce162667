"""Disk, memory, locked memory, InfiniBand devices and the clock."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from launcher.engines.choose import engine_traits
from launcher.facts.hardware import Disk
from launcher.hosts import Cluster, Job
from launcher.preflight.findings import Finding, failure, warning
from launcher.preflight.machine import Machine

GIB = 2**20  # in KiB
LEAST_FREE = 1 * GIB  # below it a run cannot keep its logs and checkpoints
LITTLE_FREE = 4 * GIB
LEAST_INODES = 10_000
SKEW = 1.0  # seconds; more than that confuses logs, caches and certificates


def check_disk(machine: Machine, job: Job) -> list[Finding]:
    """Room under ~/.ddpctl (data, code, checkpoints) and under Docker's root (images)."""
    details, docker = machine.details, machine.docker
    if details is None:
        return []
    if details.home_error:
        what = f"~/.ddpctl cannot be written: {details.home_error}"
        return [failure(machine.name, "disk", what, "mend the permissions or free space there")]
    home = machine.facts.home if machine.facts else ""
    disk = details.disk(f"{home}/.ddpctl") or details.disk(home)
    found = [
        failure(
            machine.name,
            "disk",
            f"{folder}, which job.mounts names, does not exist",
            "make it there or mend job.mounts",
        )
        for folder in details.missing
    ]
    if disk is not None:
        found += _room(machine, disk, "data and checkpoints under ~/.ddpctl", LEAST_FREE)
    in_container = engine_traits(job.engine).in_container
    store = details.disk(docker.root) if docker and in_container else None
    if docker is not None and store is not None:
        # An image that is there needs only the container's own layer.
        needed = LEAST_FREE // 4 if docker.image else LEAST_FREE
        if disk is None or store.mount != disk.mount:
            found += _room(machine, store, f"images under {docker.root}", needed)
    return found


def _room(machine: Machine, disk: Disk, use: str, needed: int) -> list[Finding]:
    remedy = f"free space on {disk.mount} there"
    if disk.kib_free < needed:
        what = f"{_size(disk.kib_free)} free on {disk.mount} for {use}"
        return [failure(machine.name, "disk", what, remedy)]
    if disk.inodes_free is not None and disk.inodes_free < LEAST_INODES:
        what = f"{disk.inodes_free} inodes free on {disk.mount} for {use}"
        return [failure(machine.name, "disk", what, f"remove small files on {disk.mount} there")]
    if disk.kib_free < LITTLE_FREE:
        what = f"only {_size(disk.kib_free)} free on {disk.mount} for {use}"
        return [warning(machine.name, "disk", what, remedy)]
    return []


def check_memory(machine: Machine, job: Job) -> list[Finding]:
    """Shared memory that can be had, and RAM that is left."""
    details = machine.details
    if details is None:
        return []
    found = []
    if not engine_traits(job.engine).in_container:
        shm = details.disk("/dev/shm")
        if shm is not None and shm.kib < GIB:
            what = f"/dev/shm holds {_size(shm.kib)}; data loader workers need more"
            remedy = "mount -o remount,size=16g /dev/shm there, or num_workers 0"
            found.append(warning(machine.name, "memory", what, remedy))
    elif job.shm_size != Job().shm_size and job.shm_size // 1024 > details.memory_kib > 0:
        what = (
            f"shm_size {_size(job.shm_size // 1024)} is more than its {_size(details.memory_kib)}"
        )
        found.append(warning(machine.name, "memory", what, "set a smaller job.shm_size"))
    if 0 < details.memory_available_kib < GIB // 2:
        what = f"only {_size(details.memory_available_kib)} of memory are available"
        found.append(warning(machine.name, "memory", what, "end what uses it there"))
    return found


def check_infiniband(machine: Machine, job: Job) -> list[Finding]:
    details = machine.details
    if details is None or not details.infiniband_ports:
        return []
    found = []
    if "uverbs0" not in details.infiniband_devices:
        what = "an InfiniBand or RoCE card and no /dev/infiniband/uverbs0: NCCL falls back to TCP"
        remedy = "load ib_uverbs there (package rdma-core)"
        found.append(warning(machine.name, "network", what, remedy))
    if not any(state == "ACTIVE" for _, state in details.infiniband_ports):
        listed = ", ".join(f"{port} {state}" for port, state in details.infiniband_ports)
        what = f"no InfiniBand port is active ({listed}): NCCL falls back to TCP"
        found.append(
            warning(machine.name, "network", what, "check cable, switch and subnet manager")
        )
    rootless = machine.docker is not None and machine.docker.is_rootless
    if details.memlock != "unlimited" and (rootless or not engine_traits(job.engine).in_container):
        what = f"memlock is limited to {details.memlock} KiB: InfiniBand cannot register memory"
        remedy = "set memlock unlimited in /etc/security/limits.conf there"
        found.append(warning(machine.name, "memory", what, remedy))
    return found


def check_clocks(machines: Sequence[Machine], cluster: Cluster) -> list[Finding]:
    """Every clock is near the median of them (the launching machine's counts as one)."""
    skews = [(m, m.facts) for m in machines if m.facts is not None]
    if not skews:
        return []
    middle = statistics.median([0.0, *(facts.clock_skew for _, facts in skews)])
    found = []
    for machine, facts in skews:
        off = facts.clock_skew - middle
        if abs(off) > SKEW + facts.clock_error:
            way = "ahead of" if off > 0 else "behind"
            what = f"its clock is {abs(off):.1f} s {way} the others"
            found.append(
                warning(machine.name, "clock", what, "start chrony or systemd-timesyncd there")
            )
    return found


def _size(kib: int) -> str:
    return f"{kib / GIB:.1f} GiB" if kib >= GIB else f"{kib / 1024:.0f} MiB"
