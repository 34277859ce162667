"""Check that the requested GPUs exist, work, are alike and are free."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from ..engines.claims import goes_first, rivals, taken
from ..engines.docker_client import WRITE_CDI_SPEC
from ..hosts.fold import ranges
from ..plan.topology import gpu_ids, ids_by_uuid
from .findings import Finding, failure, warning
from .inventory import Inventory, Machine, odd_one_out

LAST = (math.inf, "")  # the queue position of a run that has not asked for GPUs yet
BUSY_MIB = 500  # a GPU with more memory in use counts as busy

RESET = "drain the host and run `nvidia-smi --gpu-reset`; if it returns, have the GPU replaced"
# By field of GpuState.
HEALTH = {
    "uncorrectable": ("had uncorrectable ECC errors since the driver was loaded", RESET),
    "repair_pending": (
        "must be reset before it replaces faulty memory",
        "run `nvidia-smi --gpu-reset` there, or reboot the host",
    ),
    "repair_failed": (
        "could not replace faulty memory",
        "have the GPU replaced (NVIDIA's advice is an RMA)",
    ),
    "slowed": (
        "is slowed down by its temperature or power supply",
        "check cooling and power there (`nvidia-smi -q -d PERFORMANCE`)",
    ),
    "narrow": (
        "uses fewer PCIe lanes than it could",
        "reseat the card, and check the slot and the riser (`nvidia-smi -q`)",
    ),
}
# The errors in NVIDIA's Xid catalogue that call for at least a reset.
XIDS = {
    48: ("uncorrectable memory error", RESET),
    62: ("its internal microcontroller halted", RESET),
    64: ("could not replace faulty memory", RESET),
    74: ("NVLink error", f"check the NVLink bridges and switches; {RESET}"),
    79: ("it fell off the bus", "reboot the host, and check the seat and the power of the card"),
    95: ("memory error that was not contained", RESET),
    119: ("its GSP firmware does not answer", RESET),
    120: ("error of its GSP firmware", RESET),
}


def check_driver(machine: Machine, _: Inventory) -> Iterator[Finding]:
    """Check that the kernel driver answers and matches its libraries."""
    if not machine.wants_gpus:
        return
    loaded, library = machine.details.kernel_driver, machine.details.nvidia.driver
    error = machine.facts.gpu_error or ""
    if "version mismatch" in error or (loaded and library and loaded != library):
        versions = f" (kernel {loaded}, libraries {library})" if library else f": {error}"
        what = f"the NVIDIA driver was updated while its kernel module stayed loaded{versions}"
        remedy = "reboot the host, or unload and reload its nvidia modules"
        yield failure(machine.name, "gpus", what, remedy)
    elif error:
        what = f"nvidia-smi fails: {error}"
        yield failure(machine.name, "gpus", what, "fix the NVIDIA driver there, or set gpus: 0")


def check_requested(machine: Machine, seen: Inventory) -> Iterator[Finding]:
    """Check that every GPU in the hosts file exists."""
    if machine.facts.gpu_error:
        return
    there = {gpu.index for gpu in machine.facts.gpus}
    for host in machine.hosts:
        wanted = host.nproc_per_node or seen.cluster.job.nproc_per_node or 0
        ids = gpu_ids(host, machine.facts)
        missing = set(ids) - there
        if missing and not there:
            what = f"the hosts file asks for gpus: {host.written_gpus}, but the host has none"
            remedy = "install the NVIDIA driver there, or set gpus: 0"
            yield failure(machine.name, "gpus", what, remedy)
        elif missing:
            what = f"GPU {ranges(missing)} does not exist; the host has GPU {ranges(there)}"
            yield failure(machine.name, "gpus", what, "correct gpus: in the hosts file")
        elif there and len(ids) < wanted and host.gpus:
            what = f"{len(ids)} GPUs for nproc_per_node {wanted}"
            remedy = f"set nproc_per_node: {len(ids)}, or give the host more GPUs"
            yield failure(machine.name, "gpus", what, remedy)


def check_shared(machine: Machine, seen: Inventory) -> Iterator[Finding]:
    """Check that no two entries use one GPU. One machine may be listed under two names."""
    mine = _uuids(machine)
    for other in (m for m in seen.machines if m.rank < machine.rank):
        theirs = _uuids(other)
        for uuid in sorted(set(mine) & set(theirs), key=lambda uuid: mine[uuid]):
            what = f"GPU {mine[uuid]} is also GPU {theirs[uuid]} of {other.name} ({uuid})"
            remedy = f"{other.name} is the same machine: remove one entry, or split the GPUs by id"
            yield failure(machine.name, "gpus", what, remedy)


def _uuids(machine: Machine) -> dict[str, int]:
    """Return the ids of the GPUs that a machine's nodes use, by UUID. Omits GPUs without a UUID."""
    gpus = machine.facts.gpus
    return {g.uuid: g.index for g in gpus if g.index in machine.gpus and g.uuid.startswith("GPU-")}


def check_toolkit(machine: Machine, _: Inventory) -> Iterator[Finding]:
    """Check that the engine can give GPUs to a container."""
    details, engine = machine.details, machine.engine
    facts = machine.facts
    if engine is None or not facts.gpus or not machine.wants_gpus or facts.has_amd_gpus:
        return
    if engine.can.gpus == "none":
        what = f"{engine.can.product} {engine.version} cannot pass GPUs through its API"
        yield failure(machine.name, "gpus", what, "install Podman 5.4 or newer there")
    elif engine.can.gpus == "cdi":
        if not details.cdi:
            what = "there is no CDI specification for its GPUs, so containers get none"
            yield failure(machine.name, "gpus", what, WRITE_CDI_SPEC)
    elif not (details.cdi or details.toolkit or "nvidia" in engine.runtimes):
        what = "the NVIDIA container toolkit is not installed, so containers get no GPU"
        remedy = (
            "install nvidia-container-toolkit, run `nvidia-ctk runtime configure`, restart Docker"
        )
        yield failure(machine.name, "gpus", what, remedy)


def check_fabric_manager(machine: Machine, _: Inventory) -> Iterator[Finding]:
    details = machine.details
    if machine.wants_gpus and details.nvswitches and not details.fabric_manager:
        what = f"{details.nvswitches} NVSwitches but no fabric manager runs: CUDA will not start"
        remedy = "run `systemctl enable --now nvidia-fabricmanager` there, in the driver's version"
        yield failure(machine.name, "gpus", what, remedy)


def check_mig(machine: Machine, _: Inventory) -> Iterator[Finding]:
    states = machine.details.nvidia.gpus
    sliced = [g.index for g in states if g.mig == "Enabled" and g.index in machine.gpus]
    if sliced:
        what = f"MIG is enabled on GPU {ranges(sliced)}, and NCCL does not work across MIG slices"
        remedy = "run `nvidia-smi -mig 0` there, or choose other GPUs"
        yield failure(machine.name, "gpus", what, remedy)


def check_taken(machine: Machine, seen: Inventory) -> Iterator[Finding]:
    """Check that no run uses the GPUs or waits for them."""
    ids = {uuid: gpu for h in machine.hosts for uuid, gpu in ids_by_uuid(h, machine.facts).items()}
    for rival in rivals("", ids, machine.engine.nodes if machine.engine else ()):
        if goes_first(rival, LAST) and not seen.waits:
            remedy = "launch with --wait to wait in line, or choose other GPUs"
            yield failure(machine.name, "gpus", taken(ids, ids, rival), remedy)


def check_busy(machine: Machine, _: Inventory) -> Iterator[Finding]:
    """Check that no other process uses the GPUs. Names its user and run."""
    nodes = machine.engine.nodes if machine.engine else ()
    runs = {node.container: node.run_id for node in nodes if node.container}
    uuids = {gpu.index: gpu.uuid for gpu in machine.facts.gpus}
    claimed = {(node.run_id, uuid) for node in nodes if node.alive for uuid in node.gpus}
    used = [gpu for gpu in machine.details.nvidia.gpus if gpu.index in machine.gpus]
    for index, process in ((gpu.index, process) for gpu in used for process in gpu.processes):
        run = runs.get(process.container)
        if process.mib < BUSY_MIB or (run, uuids.get(index)) in claimed:
            continue  # check_taken reports GPUs that runs have claimed
        who = f"pid {process.pid}"
        who += f", user {process.user}" if process.user else ""
        who += f", run {run}" if run else ""
        what = f"GPU {index} is in use: {process.name or 'a process'} ({who}) holds "
        what += f"{process.mib} MiB"
        stop = f"run `ddpctl kill {run}`, wait for it to end" if run else "stop the process"
        yield failure(machine.name, "gpus", what, f"{stop}, or choose other GPUs")


def check_xids(machine: Machine, _: Inventory) -> Iterator[Finding]:
    """Check that the kernel log shows no broken GPU. Ignores errors caused by a program."""
    nvidia = machine.details.nvidia
    index = {gpu.pci: gpu.index for gpu in nvidia.gpus}
    for pci, number in dict.fromkeys(nvidia.xids):
        if machine.wants_gpus and number in XIDS and index.get(pci, -1) in {-1, *machine.gpus}:
            name = f"GPU {index[pci]} ({pci})" if pci in index else f"a lost GPU at {pci}"
            meaning, remedy = XIDS[number]
            what = f"{name} has had Xid {number} since the host booted: {meaning}"
            yield warning(machine.name, "gpus", what, remedy)


def check_health(machine: Machine, _: Inventory) -> Iterator[Finding]:
    """Check for hardware faults that slow a GPU down or will end a run."""
    used = [gpu for gpu in machine.details.nvidia.gpus if gpu.index in machine.gpus]
    for field, (what, remedy) in HEALTH.items():
        if found := [gpu.index for gpu in used if getattr(gpu, field)]:
            yield warning(machine.name, "gpus", f"GPU {ranges(found)} {what}", remedy)


def check_count(machine: Machine, seen: Inventory) -> Iterator[Finding]:
    """Check that `gpus: all` finds as many GPUs as on the other hosts. Fewer may mean a lost GPU."""
    if machine.facts.gpu_error:
        return
    most = max(len(gpu_ids(host, m.facts)) for m in seen.machines for host in m.hosts)
    for host in machine.hosts:
        count = len(gpu_ids(host, machine.facts))
        if host.gpus != "all" or count == most > 0:
            continue
        if most == 0:
            what = "no GPU found: it is a CPU node"
            remedy = "set gpus: 0 if that is intended, or install the NVIDIA driver there"
            if machine.facts.gpus:
                what = "no GPU found except the integrated one: it is a CPU node"
                remedy = "set gpus: 0 if that is intended, or gpus: [0] to use that one"
            yield warning(machine.name, "gpus", what, remedy)
        elif count == 0:
            what = f"no GPU found, while other hosts have {most}"
            remedy = "install the NVIDIA driver there, or leave the host out"
            yield failure(machine.name, "gpus", what, remedy)
        elif not (host.nproc_per_node or seen.cluster.job.nproc_per_node):
            what = f"{count} GPUs, while other hosts have {most}"
            remedy = f"set gpus: {count} if that is right, or look for a lost GPU in `dmesg` there"
            yield warning(machine.name, "gpus", what, remedy)


def check_alike(machine: Machine, seen: Inventory) -> Iterator[Finding]:
    """Check that GPU model, ECC setting and driver match: the slowest GPU sets the pace."""
    for value, why, remedy in (
        (_models, "the slowest GPU sets the pace", "use hosts with the same GPUs, or accept it"),
        (_ecc, "ECC costs memory and speed", "run `nvidia-smi -e 0` or `-e 1` on all, then reboot"),
        (_driver, "NCCL and CUDA may behave differently", "install the same driver on all hosts"),
    ):
        if odd := odd_one_out(machine, seen.machines, value):
            what = f"{odd[0]}, while other hosts have {odd[1]}: {why}"
            yield warning(machine.name, "gpus", what, remedy)


def _models(machine: Machine) -> str | None:
    used = {(g.name, g.memory_mib) for g in machine.facts.gpus if g.index in machine.gpus}
    sizes = {name + (f" {round(mib / 1024)} GiB" if mib else "") for name, mib in used}
    return ", ".join(sorted(sizes)) or None


def _ecc(machine: Machine) -> str | None:
    states = machine.details.nvidia.gpus
    return ", ".join(sorted({f"ECC {g.ecc}" for g in states if g.index in machine.gpus})) or None


def _driver(machine: Machine) -> str | None:
    version = machine.details.nvidia.driver
    return f"driver {version}" if version and machine.wants_gpus else None


def check_cuda(machine: Machine, _: Inventory) -> Iterator[Finding]:
    """Check that the image's CUDA major version is not newer than the driver's."""
    image = machine.engine.image if machine.engine else None
    driver = machine.details.nvidia.cuda
    if image is None or driver is None or not machine.wants_gpus:
        return
    version = re.match(r"(\d+)\.(\d+)", image.env.get("CUDA_VERSION", ""))
    if version and int(version[1]) > driver[0]:
        what = f"the image needs CUDA {version[0]}, but the driver supports {driver[0]}.{driver[1]}"
        yield failure(machine.name, "gpus", what, "update the driver, or use an older image")


CHECKS = (
    check_driver,
    check_requested,
    check_shared,
    check_toolkit,
    check_fabric_manager,
    check_mig,
    check_taken,
    check_busy,
    check_xids,
    check_health,
    check_count,
    check_alike,
    check_cuda,
)
