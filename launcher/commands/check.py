from __future__ import annotations

import dataclasses
import itertools
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..terminal.console import Console
from . import options
from .options import option

if TYPE_CHECKING:
    from ..preflight.check import Survey
    from ..preflight.fleet import Fleet
    from ..preflight.machine import Machine

COLORS = {"ok": "32", "warn": "33", "FAIL": "1;31", "-": "2"}


def check(
    hosts: str | None = options.HOSTS,
    host_list: str | None = options.HOST_LIST,
    include: str | None = options.INCLUDE,
    exclude: str | None = options.EXCLUDE,
    job: str | None = options.JOB,
    clear: str | None = option(
        "--clear", "HOST", "Forget that a host was to blame for failures; check nothing."
    ),
    as_json: bool = options.JSON,
    quiet: bool = options.QUIET,
    verbose: bool = options.VERBOSE,
) -> int:
    """Check all hosts for what would make a launch fail or run slowly.

    Each problem is printed with its remedy. Nothing is installed or left behind on a host. Problems
    of spares are warnings.

    \b
    ddpctl check hosts.yaml
    ddpctl check -H gpu1:8,gpu2:8 --json
    """
    from ..hosts import cluster_of
    from ..preflight.blamed import clear_blame
    from ..preflight.check import survey_all
    from ..ssh.node import connected
    from ..text import counted

    console = options.console(quiet, verbose)
    if clear is not None:
        cleared = clear_blame(clear)
        console.say(f"{clear}: forgotten" if cleared else f"{clear}: nothing to forget")
        if as_json:
            console.json({"version": 1, "host": clear, "cleared": cleared})
        return 0
    cluster = cluster_of(options.hosts_of(hosts, host_list), {}, include, exclude, job_file=job)
    began = time.monotonic()
    hosts_and_spares = counted(len(cluster.hosts) + len(cluster.spares), "host")
    with (
        connected(cluster.hosts) as nodes,
        connected(cluster.spares) as spares,
        console.step(f"checking {hosts_and_spares}"),
    ):
        survey = survey_all(nodes, spares, cluster, with_containers=True)
    if as_json:
        console.json(document(survey, time.monotonic() - began))
    else:
        print_table(survey, console)
        print_addresses(survey.fleet, console)
        print_findings(survey, console)
    return survey.exit_code


def document(survey: Survey, seconds: float) -> dict[str, Any]:
    """Return the JSON document of `check --json`. Keys may be added, never removed."""
    return {
        "version": 1,
        "ok": survey.exit_code == 0,
        "seconds": round(seconds, 2),
        "findings": [dataclasses.asdict(finding) for finding in survey.findings],
        "hosts": [_host(survey, machine.name, machine.ranks) for machine in survey.machines],
    }


def _host(survey: Survey, name: str, ranks: Sequence[int]) -> dict[str, Any]:
    """Return the facts of a machine; null for each unknown value."""
    fleet = survey.fleet
    machine = next((m for m in fleet.machines if m.rank == ranks[0]), None)
    address, why = fleet.address(machine) if machine else (None, "not tried")
    report = survey.reports.get(ranks[0])
    engine = machine.engine if machine else None
    return {
        "host": name,
        "node_ranks": list(ranks),
        "internal_ip": address.ip if address else None,
        "interface": (address.interface or None) if address else None,
        "nccl_env": dict(roce(fleet, machine)) if machine else None,
        "why": why,
        "docker": engine.version if engine else None,
        "storage_driver": engine.storage if engine else None,
        "cgroup_driver": engine.cgroup_driver if engine else None,
        "gpus": [gpu.name for gpu in machine.facts.gpus] if machine else None,
        "gpu_links": (machine.gpu_links or None) if machine else None,
        "torch": report.torch if report else None,
        "nccl": report.nccl if report else None,
        "clock_skew": round(machine.facts.clock_skew, 3) if machine else None,
    }


def roce(fleet: Fleet, machine: Machine) -> Mapping[str, str]:
    """Return the RoCE variables that a launch will set for NCCL on the machine."""
    from ..hosts import user_environment

    ip = fleet.addresses[machine.rank].ip
    return machine.facts.roce_settings(ip, user_environment(fleet.cluster.job))


def print_table(survey: Survey, console: Console) -> None:
    """Print a row per host and a column per check."""
    from ..preflight import findings

    silent = {m.name for m in survey.unreachable}
    silent |= {f.host for f in survey.findings if f.check == "ssh" and f.host in survey.spares}
    names = [*(machine.name for machine in survey.machines), *survey.spares]
    rows = findings.table(list(dict.fromkeys(names)), survey.findings, silent)
    console.table(rows, ["HOST", *(check.upper() for check in findings.CHECKS)], COLORS)


def print_addresses(fleet: Fleet, console: Console) -> None:
    """Print the address and the interface that a launch will use on each host."""
    for machine in fleet.machines:
        address, why = fleet.address(machine)
        if address:
            interface = f" on {address.interface}" if address.interface else ""
            console.print(f"{machine.name}: {address.ip}{interface} ({why})")
        for name, value in roce(fleet, machine).items():
            console.print(f"{machine.name}: {name}={value} (RoCE)")
        if text := gpus_text(fleet, machine):
            console.print(f"{machine.name}: {text}")


def gpus_text(fleet: Fleet, machine: Machine) -> str:
    """Describe the GPUs in use, the links between them, and the cores of each rank."""
    from ..plan.topology import gpu_ids, rank_cores
    from ..text import ranges

    used = [gpu for gpu in machine.facts.gpus if gpu.index in machine.gpus]
    models = Counter(gpu.name for gpu in used)
    parts = [f"{count} x {name}" for name, count in models.items()]
    parts += [machine.gpu_links] if machine.gpu_links else []
    job, hosts = fleet.cluster.job, machine.hosts
    of_job = job.nproc_per_node
    nproc = [h.nproc_per_node or of_job or len(gpu_ids(h, machine.facts)) for h in hosts]
    if job.numa == "auto":
        for cores in rank_cores(machine.hosts, nproc, machine.facts):
            groups = itertools.groupby(enumerate(cores), key=lambda pair: pair[1])
            parts += [
                f"ranks {ranges(rank for rank, _ in group)} on cores {ranges(own)}"
                for own, group in groups
            ]
    return ", ".join(parts)


def print_findings(survey: Survey, console: Console) -> None:
    from ..preflight import findings
    from ..text import counted

    for line in findings.lines(survey.findings):
        console.print(line)
    if not survey.findings:
        count = counted(len(survey.machines) + len(survey.spares), "host")
        console.print(f"{count} checked, no problems found")
