"""ddpctl kill"""

from __future__ import annotations

from typing import Annotated

import typer

from launcher.commands import options


def kill(
    target: options.RunOrHosts = None,
    hosts: options.LookOn = None,
    everything: Annotated[bool, typer.Option("--all", help="Every run of yours there.")] = False,
    strays: Annotated[
        bool, typer.Option("--strays", help="Leftovers of dead runs: list them; with -y end them.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> int:
    """Stop a run on all its hosts, then prove that nothing is left. Safe to repeat.

    \b
    ddpctl kill
    ddpctl kill 20261121-1530
    ddpctl kill hosts.yaml --all -y
    ddpctl kill hosts.yaml --strays
    """
    from launcher.stop import kill as killing

    console = options.console(quiet, verbose)
    if strays:
        from launcher.stop.strays import kill_strays

        return kill_strays(killing.hosts_for(target, hosts), console, yes=yes, as_json=as_json)
    if everything and not yes and not typer.confirm("Stop every run of yours there?"):
        return 130
    return killing.kill(target, hosts, console, everything=everything, as_json=as_json)
