"""ddpctl check"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launcher.commands import options

if TYPE_CHECKING:
    from launcher.preflight.run import Survey
    from launcher.terminal.console import Console


def check(
    hosts: options.Hosts = None,
    host_list: options.HostList = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> int:
    """Check all hosts for what would make a launch fail or crawl.

    Each finding is one line with its remedy.

    \b
    ddpctl check hosts.yaml
    ddpctl check -H gpu1:8,gpu2:8 --json
    """
    import time

    from launcher.hosts import load
    from launcher.preflight.run import survey_hosts
    from launcher.ssh.node import connected

    cluster = load(options.hosts_of(hosts, host_list))
    console = options.console(quiet, verbose)
    with connected(cluster.hosts) as nodes:
        began = time.monotonic()
        with console.step(
            f"looking at {len(nodes)} hosts" if len(nodes) > 1 else "looking at one host"
        ):
            survey = survey_hosts(nodes, cluster, with_trials=True)
    if as_json:
        console.json(document(survey, time.monotonic() - began))
    else:
        show(survey, console)
    return survey.exit_code


def document(survey: Survey, seconds: float) -> dict[str, Any]:
    """One JSON document; keys are only ever added to it."""
    from launcher.preflight import findings

    return {
        "version": 1,
        "ok": survey.exit_code == 0,
        "seconds": round(seconds, 2),
        "findings": findings.document(survey.findings),
        "hosts": [
            {
                "host": machine.name,
                "node_ranks": list(machine.ranks),
                "internal_ip": route.address,
                "interface": route.interface,
                "why": route.why,
                "docker": machine.docker.version if machine.docker else None,
                "storage_driver": machine.docker.storage if machine.docker else None,
                "cgroup_driver": machine.docker.cgroup_driver if machine.docker else None,
                "gpus": [gpu.name for gpu in machine.facts.gpus] if machine.facts else None,
                "torch": trial.torch if trial else None,
                "nccl": trial.nccl if trial else None,
                "clock_skew": round(machine.facts.clock_skew, 3) if machine.facts else None,
            }
            for machine, route, trial in zip(
                survey.machines, survey.routes, survey.trials, strict=True
            )
        ],
    }


def show(survey: Survey, console: Console) -> None:
    """The table, one line a finding, and what was chosen for each host."""
    from launcher.preflight.findings import table

    names = [machine.name for machine in survey.machines]
    unseen = [machine.name for machine in survey.machines if machine.ssh_error]
    show_table(table(names, survey.findings, unseen), console)
    for machine, route in zip(survey.machines, survey.routes, strict=True):
        if route.address:
            console.print(f"{machine.name}: {route.address} on {route.interface} ({route.why})")
    for finding in survey.findings:
        console.print(finding.line())
    if not survey.findings:
        console.print(f"nothing is wrong on {len(names)} {'host' if len(names) == 1 else 'hosts'}")


def show_table(rows: list[list[str]], console: Console) -> None:
    """Coloured on a terminal, plain columns elsewhere."""
    import sys

    from launcher.preflight.findings import CHECKS
    from launcher.terminal.console import table

    head = ["HOST", *(check.upper() for check in CHECKS)]
    if not sys.stdout.isatty():
        console.print(table(rows, head))
        return
    from rich.console import Console as Terminal
    from rich.table import Table

    colours = {"ok": "green", "warning": "yellow", "FAILURE": "bold red", "-": "dim"}
    drawn = Table(*head, box=None, pad_edge=False)
    for host, *cells in rows:
        drawn.add_row(host, *(f"[{colours[cell]}]{cell}[/]" for cell in cells))
    Terminal().print(drawn)
