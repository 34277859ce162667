from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..terminal.console import Console
from . import options
from .options import flag

if TYPE_CHECKING:
    from ..preflight.check import Survey
    from ..preflight.inventory import Machine, Unseen

COLOURS = {"ok": "32", "warning": "33", "FAILURE": "1;31", "-": "2"}


def check(
    hosts: str | None = options.HOSTS,
    host_list: str | None = options.HOST_LIST,
    include: str | None = options.INCLUDE,
    exclude: str | None = options.EXCLUDE,
    all_pairs: bool = flag("--all-pairs", "Test connections between every pair of hosts."),
    as_json: bool = options.JSON,
    quiet: bool = options.QUIET,
    verbose: bool = options.VERBOSE,
) -> int:
    """Check all hosts for what would make a launch fail or run slowly.

    Each problem is printed with its remedy. Nothing is installed or left behind on a host.

    \b
    ddpctl check hosts.yaml
    ddpctl check -H gpu1:8,gpu2:8 --json
    """
    from ..hosts import cluster_of
    from ..preflight.check import survey_hosts
    from ..ssh.node import connected
    from ..text import counted

    cluster = cluster_of(options.hosts_of(hosts, host_list), {}, include, exclude)
    console = options.console(quiet, verbose)
    began = time.monotonic()
    with connected(cluster.hosts) as nodes, console.step(f"checking {counted(len(nodes), 'host')}"):
        survey = survey_hosts(nodes, cluster, all_pairs=all_pairs, with_containers=True)
    if as_json:
        console.json(document(survey, time.monotonic() - began))
    else:
        show(survey, console)
    return survey.exit_code


def document(survey: Survey, seconds: float) -> dict[str, Any]:
    """Return the JSON document of `check --json`. Keys may be added, never removed."""
    return {
        "version": 1,
        "ok": survey.exit_code == 0,
        "seconds": round(seconds, 2),
        "findings": [dataclasses.asdict(finding) for finding in survey.findings],
        "hosts": [_host(survey, machine) for machine in survey.machines],
    }


def _host(survey: Survey, asked: Machine | Unseen) -> dict[str, Any]:
    """Return the facts of a machine; null for each unknown value."""
    machine = next((m for m in survey.seen.machines if m is asked), None)
    route = survey.seen.reach.routes.get(asked.ranks[0])
    report = survey.reports.get(asked.ranks[0])
    engine = machine.engine if machine else None
    return {
        "host": asked.name,
        "node_ranks": list(asked.ranks),
        "internal_ip": route.address if route else None,
        "interface": route.interface if route else None,
        "nccl_env": dict(roce(survey, machine)) if machine else None,
        "why": route.why if route else "not tried",
        "docker": engine.version if engine else None,
        "storage_driver": engine.storage if engine else None,
        "cgroup_driver": engine.cgroup_driver if engine else None,
        "gpus": [gpu.name for gpu in machine.facts.gpus] if machine else None,
        "torch": report.torch if report else None,
        "nccl": report.nccl if report else None,
        "clock_skew": round(machine.facts.clock_skew, 3) if machine else None,
    }


def roce(survey: Survey, machine: Machine) -> Mapping[str, str]:
    """Return the RoCE variables that a launch will set for NCCL on the machine."""
    from ..hosts import user_environment

    address = survey.seen.route(machine).address or ""
    return machine.facts.roce_settings(address, user_environment(survey.seen.cluster.job))


def show(survey: Survey, console: Console) -> None:
    """Print the table, the address chosen for each host, and one line per finding."""
    from ..preflight import findings
    from ..text import counted

    names = [machine.name for machine in survey.machines]
    rows = findings.table(names, survey.findings, [machine.name for machine in survey.unseen])
    console.table(rows, ["HOST", *(check.upper() for check in findings.CHECKS)], COLOURS)
    for machine in survey.seen.machines:
        route = survey.seen.route(machine)
        if route.address:
            console.print(f"{machine.name}: {route.address} on {route.interface} ({route.why})")
        for name, value in roce(survey, machine).items():
            console.print(f"{machine.name}: {name}={value} (RoCE)")
    for line in findings.lines(survey.findings):
        console.print(line)
    if not survey.findings:
        console.print(f"{counted(len(names), 'host')} checked, no problems found")
