"""ddpctl stacks"""

from __future__ import annotations

from typing import Annotated

import typer

from . import options


def stacks(
    run: options.Run = None,
    hosts: options.LookOn = None,
    all_threads: Annotated[
        bool, typer.Option("--all-threads", help="Show every Python thread, not only the main one.")
    ] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> int:
    """Print every rank's Python stack, without disturbing the run.

    Ranks at the same place are grouped, the largest group first; the last lines name the stragglers.

    \b
    ddpctl stacks
    ddpctl stacks 20261121 --hosts hosts.yaml
    """
    from ..runs import stacks as show_stacks
    from ..runs.find import find

    console = options.console(quiet, verbose)
    folder = find(run, hosts, console)
    return show_stacks.stacks(folder, console, all_threads=all_threads, as_json=as_json)
