"""Check disks, memory, locked memory, InfiniBand devices and clocks."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from ..facts.hardware import Disk
from ..hosts import Job
from .findings import Finding, failure, warning
from .inventory import Inventory, Machine

GIB = 2**20  # in KiB
LEAST_FREE = 1 * GIB  # a run needs this much for its logs and checkpoints
LITTLE_FREE = 4 * GIB
LEAST_INODES = 10_000
SKEW = 1.0  # seconds; a larger difference confuses logs, caches and certificates


def check_disk(machine: Machine, seen: Inventory) -> Iterator[Finding]:
    """Check free space below ~/.ddpctl (data, code, checkpoints) and in Docker's root (images)."""
    details, engine, home = machine.details, machine.engine, machine.facts.home
    if details.home_error:
        what = f"~/.ddpctl is not writable: {details.home_error}"
        yield failure(machine.name, "disk", what, "fix its permissions or free space there")
        return
    for folder in details.missing:
        key = "job.metrics_dir" if folder == seen.cluster.job.metrics_dir else "job.mounts"
        what = f"{folder}, named in {key}, does not exist"
        yield failure(machine.name, "disk", what, f"create it there or correct {key}")
    disk = details.disk(f"{home}/.ddpctl") or details.disk(home)
    if disk:
        yield from _room(machine, disk, "data and checkpoints under ~/.ddpctl", LEAST_FREE)
    store = details.disk(engine.root) if engine else None
    if engine and store and (disk is None or store.mount != disk.mount):
        # if the image exists already, only the container's own layer needs space
        needed = LEAST_FREE // 4 if engine.image else LEAST_FREE
        yield from _room(machine, store, f"images under {engine.root}", needed)


def _room(machine: Machine, disk: Disk, use: str, needed: int) -> Iterator[Finding]:
    free = f"{_size(disk.kib_free)} free on {disk.mount} for {use}"
    remedy = f"free space on {disk.mount} there"
    if disk.kib_free < needed:
        yield failure(machine.name, "disk", f"only {free}", remedy)
    elif disk.inodes_free is not None and disk.inodes_free < LEAST_INODES:
        what = f"only {disk.inodes_free} inodes free on {disk.mount} for {use}"
        yield failure(machine.name, "disk", what, f"remove small files on {disk.mount} there")
    elif disk.kib_free < LITTLE_FREE:
        yield warning(machine.name, "disk", f"only {free}", remedy)


def check_memory(machine: Machine, seen: Inventory) -> Iterator[Finding]:
    """Check free RAM and the available shared memory."""
    details, wanted = machine.details, seen.cluster.job.shm_size
    shm = details.disk("/dev/shm")
    if not machine.in_containers and shm and shm.kib < GIB:
        what = f"/dev/shm is only {_size(shm.kib)}, and data loader workers need more"
        remedy = "run `mount -o remount,size=16g /dev/shm` there, or set num_workers to 0"
        yield warning(machine.name, "memory", what, remedy)
    if (
        machine.in_containers
        and wanted != Job().shm_size
        and wanted // 1024 > details.memory_kib > 0
    ):
        what = f"shm_size {_size(wanted // 1024)} exceeds its {_size(details.memory_kib)} of memory"
        yield warning(machine.name, "memory", what, "set a smaller job.shm_size")
    if 0 < details.memory_available_kib < GIB // 2:
        what = f"only {_size(details.memory_available_kib)} of memory available"
        yield warning(machine.name, "memory", what, "stop the programs that use it")


def check_infiniband(machine: Machine, _: Inventory) -> Iterator[Finding]:
    details, ports = machine.details, machine.facts.rdma_ports
    if not ports:
        return
    if "uverbs0" not in details.infiniband_devices:
        what = "InfiniBand or RoCE without /dev/infiniband/uverbs0: NCCL falls back to TCP"
        remedy = "load ib_uverbs there (package rdma-core)"
        yield warning(machine.name, "network", what, remedy)
    if not any(port.is_up for port in ports):
        listed = ", ".join(f"{port.name} {port.state}" for port in ports)
        what = f"no InfiniBand port is active ({listed}): NCCL falls back to TCP"
        remedy = "check the cable, the switch and the subnet manager"
        yield warning(machine.name, "network", what, remedy)
    rootless = machine.engine is not None and machine.engine.can.rootless
    if details.memlock != "unlimited" and (rootless or not machine.in_containers):
        what = f"memlock is limited to {details.memlock} KiB: InfiniBand cannot register memory"
        remedy = "set memlock to unlimited in /etc/security/limits.conf there"
        yield warning(machine.name, "memory", what, remedy)


def check_clock(machine: Machine, seen: Inventory) -> Iterator[Finding]:
    """Check that the clock is near the median of all clocks, including this machine's."""
    facts = machine.facts
    middle = statistics.median([0.0, *(m.facts.clock_skew for m in seen.machines)])
    off = facts.clock_skew - middle
    if abs(off) > SKEW + facts.clock_error:
        what = f"its clock is {abs(off):.1f} s {'ahead of' if off > 0 else 'behind'} the others"
        yield warning(machine.name, "clock", what, "start chrony or systemd-timesyncd there")


def _size(kib: int) -> str:
    return f"{kib / GIB:.1f} GiB" if kib >= GIB else f"{kib / 1024:.0f} MiB"


CHECKS = (check_disk, check_memory, check_infiniband, check_clock)
