"""Format the output of `check`: a table, addresses, GPUs and findings, or one JSON document."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ..engines.choose import engine_traits
from ..hosts import user_env
from ..plan.node_gpus import nproc_on
from ..plan.topology import rank_cores
from ..terminal.console import Console
from ..text import counted, numbered, ranges
from .check import CHECKS, Survey
from .findings import Finding, lines
from .fleet import Fleet
from .machine import Machine

COLUMNS = ("ssh", *CHECKS)
BY_ENGINE = ("image", "runs")  # columns that are not checked if the engine does not answer
WITH_CONTAINERS = ("docker", "image")  # columns that are not checked for a job without containers
COLORS = {"ok": "32", "warn": "33", "FAIL": "1;31", "-": "2"}


def print_survey(survey: Survey, console: Console) -> None:
    """Print a table of all checks, the addresses and GPUs that a launch will use, and the findings."""
    names = [*dict.fromkeys([*survey.ranks, *survey.spares])]
    heads = ["HOST", *(column.upper() for column in COLUMNS)]
    in_container = engine_traits(survey.fleet.cluster.job.engine).in_container
    left_out = () if in_container else WITH_CONTAINERS
    console.table(table(names, survey.findings, left_out), heads, COLORS)
    print_addresses(survey.fleet, console)
    for line in lines(survey.findings):
        console.print(line)
    if not survey.findings:
        count = counted(len(survey.ranks) + len(survey.spares), "host")
        console.print(f"{count} checked, no problems found")


def table(
    hosts: Sequence[str], findings: Sequence[Finding], left_out: Sequence[str] = ()
) -> list[list[str]]:
    """Return a row per host: its name, then ok, warn, FAIL or `-` (not checked) for each check.

    left_out: checks that were not made on any host.
    """
    failed = [f for f in findings if f.severity == "failure"]
    cells = {(host, check): "-" for host in hosts for check in left_out}
    cells |= {(f.host, check): "-" for f in findings if f.check == "ssh" for check in COLUMNS}
    cells |= {(f.host, check): "-" for f in failed if f.check == "docker" for check in BY_ENGINE}
    cells |= {(f.host, f.check): "warn" for f in findings}
    cells |= {(f.host, f.check): "FAIL" for f in failed}
    return [[host, *(cells.get((host, check), "ok") for check in COLUMNS)] for host in hosts]


def print_addresses(fleet: Fleet, console: Console) -> None:
    """Print the address, the RoCE settings and the GPUs that a launch will use on each host."""
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
    used = [gpu for gpu in machine.facts.gpus if gpu.index in machine.gpus]
    models = Counter(gpu.name for gpu in used)
    parts = [f"{count} x {name}" for name, count in models.items()]
    parts += [machine.gpu_links] if machine.gpu_links else []
    job = fleet.cluster.job
    nproc = [nproc_on(host, job, machine.facts) for host in machine.hosts]
    if job.numa == "auto":
        for cores in rank_cores(machine.hosts, nproc, machine.facts):
            groups = itertools.groupby(enumerate(cores), key=lambda pair: pair[1])
            parts += [
                f"{numbered('rank', (rank for rank, _ in group))} on cores {ranges(own)}"
                for own, group in groups
            ]
    return ", ".join(parts)


def document(survey: Survey, seconds: float) -> dict[str, Any]:
    """Return the JSON document of `check --json`. Keys may be added, never removed."""
    return {
        "version": 1,
        "ok": survey.exit_code == 0,
        "seconds": round(seconds, 2),
        "findings": [dataclasses.asdict(finding) for finding in survey.findings],
        "hosts": [_host(survey.fleet, name, ranks) for name, ranks in survey.ranks.items()],
    }


def _host(fleet: Fleet, name: str, ranks: Sequence[int]) -> dict[str, Any]:
    """Return a machine's entry in the document, with None for each unknown value."""
    machine = next((m for m in fleet.machines if m.rank == ranks[0]), None)
    address, why = fleet.address(machine) if machine else (None, "not tried")
    report = machine.report if machine else None
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
    ip = fleet.addresses[machine.rank].ip
    return machine.facts.roce_settings(ip, user_env(fleet.cluster.job))
