"""GPUs: those that are asked for exist, work, are alike, and are free."""

from __future__ import annotations

import re
from collections.abc import Sequence

from launcher.hosts import Cluster, Host
from launcher.plan.topology import gpu_ids
from launcher.preflight.findings import Finding, failure, warning
from launcher.preflight.machine import Machine, common

BUSY_MIB = 500  # more than that on a GPU is somebody's work
REBOOT = "reboot the host (or unload and reload its nvidia modules)"


def check_driver(machine: Machine) -> list[Finding]:
    """The kernel's driver answers, and is the one that the libraries are for."""
    facts, details = machine.facts, machine.details
    if facts is None or details is None or not machine.wants_gpus:
        return []
    loaded, library = details.kernel_driver, details.nvidia.driver
    error = facts.gpu_error or ""
    if "version mismatch" in error or (loaded and library and loaded != library):
        versions = f" (kernel {loaded}, libraries {library})" if library else ""
        what = f"the NVIDIA driver was updated under the running kernel{versions}: {error or 'mismatch'}"
        return [failure(machine.name, "gpus", what, REBOOT)]
    if error:
        what = f"nvidia-smi says: {error}"
        return [failure(machine.name, "gpus", what, "mend the NVIDIA driver there, or gpus: 0")]
    return []


def check_requested(machine: Machine, cluster: Cluster) -> list[Finding]:
    """Every GPU id that the hosts file names exists."""
    facts = machine.facts
    if facts is None or facts.gpu_error:
        return []
    found = []
    there = {gpu.index for gpu in facts.gpus}
    for host in machine.hosts:
        missing = sorted(set(gpu_ids(host, facts)) - there)
        if missing and not there:
            what = f"gpus: {_words(host)} is asked for, and no GPU is there"
            found.append(
                failure(machine.name, "gpus", what, "write gpus: 0, or install the NVIDIA driver")
            )
        elif missing:
            what = f"GPU {_list(missing)} does not exist; the host has {_list(sorted(there))}"
            found.append(failure(machine.name, "gpus", what, "correct gpus: in the hosts file"))
        elif there and len(gpu_ids(host, facts)) < (cluster.job.nproc_per_node or 0) and host.gpus:
            count, wanted = len(gpu_ids(host, facts)), cluster.job.nproc_per_node
            what = f"{count} GPUs for nproc_per_node {wanted}"
            found.append(
                failure(
                    machine.name, "gpus", what, f"set nproc_per_node: {count} or give more GPUs"
                )
            )
    return found


def check_toolkit(machine: Machine) -> list[Finding]:
    """The engine can hand GPUs to a container."""
    facts, details, docker = machine.facts, machine.details, machine.docker
    if facts is None or details is None or docker is None or not facts.gpus:
        return []
    if not machine.wants_gpus or details.cdi or details.toolkit or "nvidia" in docker.runtimes:
        return []
    return [
        failure(
            machine.name,
            "gpus",
            "the NVIDIA container toolkit is not installed, so containers get no GPU",
            "install nvidia-container-toolkit, run `nvidia-ctk runtime configure`, restart Docker",
        )
    ]


def check_fabric_manager(machine: Machine) -> list[Finding]:
    details = machine.details
    if details is None or not machine.wants_gpus:
        return []
    if not details.nvswitches or details.fabric_manager:
        return []
    what = f"{details.nvswitches} NVSwitches and no running fabric manager: CUDA will not start"
    remedy = "systemctl enable --now nvidia-fabricmanager there, of the driver's version"
    return [failure(machine.name, "gpus", what, remedy)]


def check_mig(machine: Machine) -> list[Finding]:
    details, facts = machine.details, machine.facts
    if details is None or facts is None:
        return []
    used = {index for host in machine.hosts for index in gpu_ids(host, facts)}
    split = [g.index for g in details.nvidia.gpus if g.mig == "Enabled" and g.index in used]
    if not split:
        return []
    what = f"MIG is on for GPU {_list(split)}, and NCCL does not join MIG slices"
    return [failure(machine.name, "gpus", what, "nvidia-smi -mig 0 there, or choose other GPUs")]


def check_busy(machine: Machine) -> list[Finding]:
    """GPUs that somebody uses, with the process, its user and its run."""
    details, facts, docker = machine.details, machine.facts, machine.docker
    if details is None or facts is None:
        return []
    wanted = {index for host in machine.hosts for index in gpu_ids(host, facts)}
    runs = docker.containers if docker else {}
    found = []
    for process in details.nvidia.processes:
        if process.gpu not in wanted or process.mib < BUSY_MIB:
            continue
        run = runs.get(process.container)
        who = f"{process.name or 'a process'} (pid {process.pid}"
        who += f", user {process.user}" if process.user else ""
        who += f", run {run})" if run else ")"
        remedy = f"`ddpctl kill {run}`, wait for it" if run else "end it"
        found.append(
            failure(
                machine.name,
                "gpus",
                f"GPU {process.gpu} is in use: {who} holds {process.mib} MiB",
                f"{remedy}, or choose other GPUs",
            )
        )
    return found


def check_alike(machines: Sequence[Machine], cluster: Cluster) -> list[Finding]:
    """The same number, kind and settings of GPUs on every node; the slowest sets the pace."""
    seen = [(m, m.facts) for m in machines if m.facts is not None and not m.facts.gpu_error]
    found: list[Finding] = []
    counts = [(m, host, len(gpu_ids(host, facts))) for m, facts in seen for host in m.hosts]
    if cluster.job.nproc_per_node is None and counts:
        usual = max(common([count for _, _, count in counts]), 1)
        most = max(count for _, _, count in counts)
        for machine, host, count in counts:
            if count == 0 and most > 0 and host.gpus == "all":
                what = f"no GPU was found, and other hosts have {most}"
                remedy = "install the NVIDIA driver there or leave the host out"
                found.append(failure(machine.name, "gpus", what, remedy))
            elif max(count, 1) != usual:
                what = f"{count} GPUs, and other nodes have {usual}: torchrun needs as many on each"
                remedy = "set job.nproc_per_node, or gpus: on the hosts"
                found.append(failure(machine.name, "gpus", what, remedy))
    chosen = [
        (m, sorted({(g.name, g.memory_mib) for g in facts.gpus if g.index in _used(m)}))
        for m, facts in seen
    ]
    found += _differing(
        [(m, [f"{name} {round(mib / 1024)} GiB" for name, mib in gpus]) for m, gpus in chosen],
        "the slowest GPU sets the pace",
        "use hosts with the same GPUs, or accept it",
    )
    detailed = [(m, m.details.nvidia) for m in machines if m.details and m.wants_gpus]
    found += _differing(
        [(m, sorted({f"ECC {g.ecc}" for g in n.gpus if g.index in _used(m)})) for m, n in detailed],
        "ECC costs memory and speed on some nodes only",
        "nvidia-smi -e 0 or 1 on all alike, then reboot",
    )
    found += _differing(
        [(m, [f"driver {n.driver}"] if n.driver else []) for m, n in detailed],
        "NCCL and CUDA may behave differently",
        "install the same driver on all hosts",
    )
    return found


def check_cuda(machine: Machine) -> list[Finding]:
    """The image's CUDA is not newer than the driver by a major version."""
    details, docker = machine.details, machine.docker
    if details is None or docker is None or docker.image is None or not machine.wants_gpus:
        return []
    match = re.match(r"(\d+)\.(\d+)", docker.image.env.get("CUDA_VERSION", ""))
    driver = details.nvidia.cuda
    if match is None or driver is None or int(match[1]) <= driver[0]:
        return []
    what = f"the image is for CUDA {match[0]}, the driver runs up to {driver[0]}.{driver[1]}"
    return [failure(machine.name, "gpus", what, "update the driver or take an image for its CUDA")]


def _used(machine: Machine) -> set[int]:
    if machine.facts is None:
        return set()
    return {index for host in machine.hosts for index in gpu_ids(host, machine.facts)}


def _differing(said: list[tuple[Machine, list[str]]], why: str, remedy: str) -> list[Finding]:
    """A warning for each machine that says something else than most of them."""
    told = [(machine, ", ".join(words)) for machine, words in said if words]
    if len({text for _, text in told}) < 2:
        return []
    usual = common([text for _, text in told])
    return [
        warning(machine.name, "gpus", f"{text}, and other hosts have {usual}: {why}", remedy)
        for machine, text in told
        if text != usual
    ]


def _words(host: Host) -> str:
    return str(list(host.gpus)) if isinstance(host.gpus, tuple) else str(host.gpus)


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
