"""ddpctl ps"""

from __future__ import annotations

from typing import Annotated

import typer

from . import options

INTERRUPTED = 130


def ps(
    hosts: options.Hosts = None,
    host_list: options.HostList = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Show finished runs too.")
    ] = False,
    per_node: Annotated[
        bool, typer.Option("--nodes", help="Show a row per node instead of a row per run.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Refresh the table until Ctrl-C.")
    ] = False,
    interval: Annotated[
        float,
        typer.Option("--interval", min=0.1, max=86400, metavar="S", help="Seconds, with --watch."),
    ] = 2.0,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> int:
    """List runs, and who uses which GPU, as the hosts see it.

    Without HOSTS: ./hosts.yaml if it exists, and the hosts of the live runs of this machine.
    GPUs that are used alike share a line. The first lines are the ones to look at: processes of no
    run, and idle GPUs of a busy run. Processes and utilization are those of NVIDIA GPUs.

    \b
    ddpctl ps hosts.yaml
    ddpctl ps hosts.yaml --all --json
    ddpctl ps hosts.yaml --nodes --watch
    """
    from ..errors import UsageError
    from ..follow.show_runs import Selection, show_runs, watch_runs

    console = options.console(quiet, verbose)
    given = options.hosts_of(hosts, host_list) if hosts or host_list else None
    selection = Selection(given, everything, per_node)
    if not watch:
        return show_runs(selection, console, as_json=as_json)
    if as_json:
        raise UsageError("--watch prints no JSON: repeat `ddpctl ps --json` instead")
    watch_runs(selection, console, interval)
    return INTERRUPTED
