"""Check that the requested GPUs exist, work, are alike and are free."""

import math
import re
from collections.abc import Iterator

from ..engines.claims import goes_first, rivals, taken
from ..engines.engine_info import WRITE_CDI_SPEC
from ..facts.nvidia import BUSY_MIB
from ..facts.xids import RESET, XIDS
from ..plan.node_gpus import gpu_ids
from ..text import counted, numbered, ranges
from .findings import Finding, failure, warning
from .fleet import Fleet, different
from .machine import Machine

LAST = (math.inf, "")  # the queue position of a run that has not asked for GPUs yet

# The problem and the remedy, by field of GpuState.
HEALTH = {
    "uncorrectable": ("uncorrectable ECC errors since the driver was loaded", RESET),
    "repair_pending": (
        "reset needed before faulty memory can be replaced",
        "run `nvidia-smi --gpu-reset` on that host, or reboot it",
    ),
    "repair_failed": (
        "faulty memory could not be replaced",
        "request a replacement (NVIDIA recommends an RMA)",
    ),
    "slowed": (
        "throttled because of temperature or power supply",
        "check cooling and power on that host (`nvidia-smi -q -d PERFORMANCE`)",
    ),
    "narrow": (
        "fewer PCIe lanes in use than possible",
        "reseat the card, and check the slot and the riser (`nvidia-smi -q`)",
    ),
}


def check_driver(machine: Machine, _: Fleet) -> Iterator[Finding]:
    """Check the driver, its libraries, the fabric manager, and support for the image's CUDA."""
    if not machine.wants_gpus:
        return
    details, nvidia = machine.details, machine.details.nvidia
    loaded, library, error = details.kernel_driver, nvidia.driver, machine.facts.gpu_error or ""
    if "version mismatch" in error or (loaded and library and loaded != library):
        versions = f" (kernel {loaded}, libraries {library})" if library else f": {error}"
        what = f"the NVIDIA driver was updated while its kernel module stayed loaded{versions}"
        yield failure(what, "reboot the host, or unload and reload its nvidia modules")
    elif error:
        remedy = "fix the NVIDIA driver on that host, or set gpus: 0"
        yield failure(f"nvidia-smi fails: {error}", remedy)
    if details.nvswitches and not details.fabric_manager:
        what = f"{details.nvswitches} NVSwitches, but no fabric manager is running: CUDA will not start"
        remedy = (
            "on that host, run `systemctl enable --now nvidia-fabricmanager` (its version must match "
            "the driver's)"
        )
        yield failure(what, remedy)
    image = machine.engine.image if machine.engine else None
    needed = re.match(r"(\d+)\.\d+", image.env.get("CUDA_VERSION", "")) if image else None
    if needed and nvidia.cuda and int(needed[1]) > nvidia.cuda[0]:
        newest = "{}.{}".format(*nvidia.cuda)
        what = f"the image needs CUDA {needed[0]}, but the driver supports only {newest}"
        yield failure(what, "update the driver, or use an older image")


def check_toolkit(machine: Machine, _: Fleet) -> Iterator[Finding]:
    """Check that the engine can give GPUs to a container."""
    details, engine, facts = machine.details, machine.engine, machine.facts
    if engine is None or not facts.gpus or not machine.wants_gpus or facts.has_amd_gpus:
        return
    if engine.can.gpus == "none":
        what = f"the API of {engine.can.product} {engine.version} cannot give GPUs to containers"
        yield failure(what, "install Podman 5.4 or newer on that host")
    elif engine.can.gpus == "cdi" and not details.cdi:
        what = "there is no CDI specification for its GPUs, so containers get no GPU"
        yield failure(what, WRITE_CDI_SPEC)
    elif not (details.cdi or details.toolkit or "nvidia" in engine.runtimes):
        what = "the NVIDIA container toolkit is not installed, so containers get no GPU"
        configure = "run `nvidia-ctk runtime configure`, and restart Docker"
        yield failure(what, f"install nvidia-container-toolkit, {configure}")


def check_requested(machine: Machine, fleet: Fleet) -> Iterator[Finding]:
    """Check that the requested GPUs exist and suffice.

    Also checks that `gpus: all` means the same number of GPUs on all hosts.
    """
    if machine.facts.gpu_error:
        return
    existing = {gpu.index for gpu in machine.facts.gpus}
    most = max(len(gpu_ids(host, m.facts)) for m in fleet.machines for host in m.hosts)
    for host in machine.hosts:
        nproc = host.nproc_per_node or fleet.cluster.job.nproc_per_node or 0
        ids = gpu_ids(host, machine.facts)
        count, missing = len(ids), set(ids) - existing
        if missing and not existing:
            what = f"the hosts file asks for gpus: {host.written_gpus}, but the host has none"
            yield failure(what, "install the NVIDIA driver on that host, or set gpus: 0")
        elif missing:
            what = f"the host has no {numbered('GPU', missing)}, only {ranges(existing)}"
            yield failure(what, "fix `gpus:` in the hosts file")
        elif existing and count < nproc and host.gpus:
            remedy = f"set nproc_per_node: {count}, or give the host more GPUs"
            what = f"nproc_per_node is {nproc}, but the node has only {counted(count, 'GPU')}"
            yield failure(what, remedy)
        if host.gpus != "all" or count == most > 0:
            continue
        if most == 0 and existing:
            what = "found only an integrated GPU, so this is a CPU node"
            yield warning(what, "set gpus: 0 if that is intended, or gpus: [0] to use that GPU")
        elif most == 0:
            what = "found no GPU, so this is a CPU node"
            remedy = "set gpus: 0 if that is intended, or install the NVIDIA driver on that host"
            yield warning(what, remedy)
        elif count == 0:
            what = f"found no GPU, while other hosts have {most}"
            yield failure(what, "install the NVIDIA driver on that host, or leave the host out")
        elif not nproc:  # fewer may mean a lost GPU
            remedy = f"set gpus: {count} if that is right, or check `dmesg` for a lost GPU"
            yield warning(f"{counted(count, 'GPU')}, while other hosts have {most}", remedy)


def check_shared(machine: Machine, fleet: Fleet) -> Iterator[Finding]:
    """Check that no two hosts share a GPU, because one machine may be listed under two names."""
    mine = machine.gpus_by_uuid
    for other in (m for m in fleet.machines if m.rank < machine.rank):
        theirs = other.gpus_by_uuid
        for uuid, gpu in mine.items():
            if uuid in theirs and uuid.startswith("GPU-"):  # other keys are not UUIDs
                what = f"GPU {gpu} is also GPU {theirs[uuid]} of {other.name} ({uuid})"
                same = f"{other.name} is the same machine"
                yield failure(what, f"{same}: remove one entry, or give each entry its own GPU ids")


def check_free(machine: Machine, fleet: Fleet) -> Iterator[Finding]:
    """Check that no run uses or waits for the GPUs, and that no other process uses them."""
    ids = machine.gpus_by_uuid
    containers = {node.container: node.run_id for node in machine.run_nodes if node.container}
    for rival in rivals("", ids, machine.run_nodes):
        if goes_first(rival, LAST) and not fleet.waits:
            remedy = "launch with --wait to wait in line, or choose other GPUs"
            yield failure(taken(ids, ids, rival), remedy)
    uuids = {gpu.index: gpu.uuid for gpu in machine.facts.gpus}
    claimed = {
        (node.run_id, uuid) for node in machine.run_nodes if node.alive for uuid in node.gpus
    }
    for gpu in machine.gpu_states:
        for process in gpu.processes:
            run = containers.get(process.container) or process.run_id
            if process.mib < BUSY_MIB or (run, uuids.get(gpu.index)) in claimed:
                continue  # GPUs that runs have claimed are reported above
            who = f"pid {process.pid}"
            who += f", user {process.user}" if process.user else ""
            who += f", run {run}" if run else ""
            name = process.name or "a process"
            what = f"GPU {gpu.index} is in use: {name} ({who}) holds {process.mib} MiB"
            stop = f"run `ddpctl kill {run}`, wait for it to end" if run else "stop the process"
            yield failure(what, f"{stop}, or choose other GPUs")


def check_health(machine: Machine, _: Fleet) -> Iterator[Finding]:
    """Check for MIG, hardware faults, and GPU errors in the kernel log.

    Errors that a program can cause are ignored.
    """
    if sliced := [gpu.index for gpu in machine.gpu_states if gpu.mig == "Enabled"]:
        what = f"MIG is enabled on {numbered('GPU', sliced)}"
        what += ", and NCCL does not work across MIG slices"
        yield failure(what, "run `nvidia-smi -mig 0` on that host, or choose other GPUs")
    for field, (what, remedy) in HEALTH.items():
        if gpus := [gpu.index for gpu in machine.gpu_states if getattr(gpu, field)]:
            yield warning(f"{numbered('GPU', gpus)}: {what}", remedy)
    nvidia = machine.details.nvidia
    index = {gpu.pci: gpu.index for gpu in nvidia.gpus}
    for pci, number in dict.fromkeys(nvidia.xids):
        if machine.wants_gpus and number in XIDS and index.get(pci, -1) in {-1, *machine.gpus}:
            name = f"GPU {index[pci]} ({pci})" if pci in index else f"a lost GPU at {pci}"
            meaning, remedy = XIDS[number]
            what = f"{name} has reported Xid {number} since the host booted: {meaning}"
            yield warning(what, remedy)


def check_peers(machine: Machine, fleet: Fleet) -> Iterator[Finding]:
    """Check that PCIe devices can reach each other directly wherever NCCL relies on that.

    GPUs linked by NVLink do not use PCIe; GeForce GPUs copy through CPU memory anyway.
    """
    facts, details, nvidia = machine.facts, machine.details, machine.details.nvidia
    used = [gpu for gpu in facts.gpus if gpu.index in machine.gpus and gpu.vendor == "nvidia"]
    own = {gpu.index for gpu in used}
    by_pcie = [
        pair
        for pair, word in nvidia.p2p.items()
        if word == "OK" and own.issuperset(pair) and not nvidia.links.get(pair, "").startswith("NV")
    ]
    direct = [g for g in used if g.memory_mib and not re.search("GeForce|TITAN", g.name)]
    rdma = any(port.is_up for port in facts.rdma_ports) and len(fleet.machines) > 1 and direct
    p2p = "x86" in facts.kernel and "NCCL_P2P_DISABLE" not in fleet.cluster.job.env
    if p2p and (by_pcie or rdma):
        remedy = "boot with iommu=pt, or disable the IOMMU"
        if translated := [gpu.index for gpu in used if gpu.iommu.startswith("DMA")]:
            what = f"the IOMMU translates addresses for {numbered('GPU', translated)}"
            yield warning(
                f"{what}: transfers between PCIe devices may be slow or hang",
                f"{remedy} on that host",
            )
        elif details.acs:
            what = "PCIe ACS sends transfers between devices via the CPU: they may be slow or hang"
            yield warning(what, "disable ACS in the BIOS, or set NCCL_P2P_DISABLE=1 in job.env")
    kernel = tuple(map(int, re.findall(r"[0-9]{1,4}", facts.kernel)[:2]))
    by_dma_buf = details.open_driver and kernel >= (5, 12)
    if rdma and details.kernel_driver and not (details.peermem or by_dma_buf):
        what = "GPUDirect RDMA is off, so NCCL copies through CPU memory"
        yield warning(
            what, "run `modprobe nvidia-peermem` on that host, or install the open kernel module"
        )


def check_alike(machine: Machine, fleet: Fleet) -> Iterator[Finding]:
    """Check that all hosts have the same GPU model, ECC setting and driver."""

    def models(m: Machine) -> str | None:
        used = {(g.name, g.memory_mib) for g in m.facts.gpus if g.index in m.gpus}
        sizes = {name + (f" {round(mib / 1024)} GiB" if mib else "") for name, mib in used}
        return ", ".join(sorted(sizes)) or None

    def ecc(m: Machine) -> str | None:
        return ", ".join(sorted({f"ECC {gpu.ecc}" for gpu in m.gpu_states})) or None

    def driver(m: Machine) -> str | None:
        version = m.details.nvidia.driver
        return f"driver {version}" if version and m.wants_gpus else None

    what = "{}, while other hosts have {}: the slowest GPU sets the pace"
    remedy = "use hosts with the same GPUs, or accept the lower speed"
    yield from different(machine, fleet, models, what, remedy)
    what = "{}, while other hosts have {}: ECC costs memory and speed"
    remedy = "run `nvidia-smi -e 0` (or 1) on all hosts, then reboot"
    yield from different(machine, fleet, ecc, what, remedy)
    what = "{}, while other hosts have {}: NCCL and CUDA may behave differently"
    yield from different(machine, fleet, driver, what, "install the same driver on all hosts")
