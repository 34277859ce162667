"""Check disks, memory and process limits."""

from collections.abc import Iterator

from ..facts.hardware import Disk
from ..hosts import Job
from .findings import Finding, failure, warning
from .fleet import Fleet
from .machine import Machine

GIB = 2**20  # in KiB
LEAST_FREE = 1 * GIB  # a run needs this much for its logs and checkpoints
LITTLE_FREE = 4 * GIB
LEAST_INODES = 10_000
LEAST_OPEN_FILES = 4096


def check_disk(machine: Machine, fleet: Fleet) -> Iterator[Finding]:
    """Check ~/.ddpctl, the job's folders and devices, and the free space for data and images."""
    details, engine, home = machine.details, machine.engine, machine.facts.home
    if details.home_error:
        what = f"~/.ddpctl is not writable: {details.home_error}"
        yield failure(what, "fix its permissions, or free up disk space on that host")
        return
    job = fleet.cluster.job
    others = {device.split(":")[0]: ("job.devices", "load its driver") for device in job.devices}
    others[job.metrics_dir or ""] = ("job.metrics_dir", "create it")
    for path in details.missing:
        key, remedy = others.get(path, ("job.mounts", "create it"))
        what = f"{path} does not exist, but {key} names it"
        yield failure(what, f"{remedy} on that host, or fix {key}")
    disk = details.disk(f"{home}/.ddpctl") or details.disk(home)
    if disk:
        ours = "`ddpctl push --prune` deletes data that no run uses; `ddpctl clean` deletes all runs too"
        yield from _room(disk, "data and checkpoints under ~/.ddpctl", LEAST_FREE, f": {ours}")
    store = details.disk(engine.root) if engine else None
    if engine and store and (disk is None or store.mount != disk.mount):
        # if the image exists already, only the container's own layer needs space
        needed = LEAST_FREE // 4 if engine.image else LEAST_FREE
        yield from _room(store, f"images under {engine.root}", needed)


def _room(disk: Disk, use: str, needed: int, how: str = "") -> Iterator[Finding]:
    free = f"only {_size(disk.kib_free)} free on {disk.mount} for {use}"
    remedy = f"free up space in {disk.mount} on that host{how}"
    if disk.kib_free < needed:
        yield failure(free, remedy)
    elif disk.inodes_free is not None and disk.inodes_free < LEAST_INODES:
        what = f"only {disk.inodes_free} inodes free on {disk.mount} for {use}"
        yield failure(what, f"remove small files from {disk.mount} on that host")
    elif disk.kib_free < LITTLE_FREE:
        yield warning(free, remedy)


def check_memory(machine: Machine, fleet: Fleet) -> Iterator[Finding]:
    """Check free RAM, shared memory, and the limits on open files and on locked memory."""
    details, shm_size = machine.details, fleet.cluster.job.shm_size
    shm, chosen = details.disk("/dev/shm"), shm_size != Job().shm_size
    if not fleet.in_containers and shm and shm.kib < GIB:
        what = f"/dev/shm is only {_size(shm.kib)}, but data loader workers need more"
        remedy = "run `mount -o remount,size=16g /dev/shm` on that host, or set num_workers to 0"
        yield warning(what, remedy)
    if fleet.in_containers and chosen and shm_size // 1024 > details.memory_kib > 0:
        what = f"shm_size {_size(shm_size // 1024)} exceeds the host's memory, {_size(details.memory_kib)}"
        yield warning(what, "set a smaller job.shm_size")
    if 0 < details.memory_available_kib < GIB // 2:
        what = f"only {_size(details.memory_available_kib)} of memory is available"
        yield warning(what, "stop other programs that use memory on that host")
    few_files = details.open_files.isdecimal() and int(details.open_files) < LEAST_OPEN_FILES
    if few_files and not fleet.in_containers:
        what = f"a process may open only {details.open_files} files, but data loaders need more"
        yield warning(what, "raise nofile in /etc/security/limits.conf on that host")
    limited = not fleet.in_containers or (machine.engine and machine.engine.can.rootless)
    if machine.facts.rdma_ports and details.memlock != "unlimited" and limited:
        what = f"memlock is {details.memlock} KiB: InfiniBand cannot register more memory than that"
        yield warning(what, "set memlock to unlimited in /etc/security/limits.conf on that host")


def _size(kib: int) -> str:
    return f"{kib / GIB:.1f} GiB" if kib >= GIB else f"{kib / 1024:.0f} MiB"
