"""ddpctl stacks"""

from __future__ import annotations

from typing import Annotated

import typer

from launcher.commands import options


def stacks(
    run: options.Run = None,
    hosts: options.LookOn = None,
    all_threads: Annotated[
        bool, typer.Option("--all-threads", help="Every Python thread, not only the main one.")
    ] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> int:
    """Where every rank stands: its Python stack, from all hosts at once. Changes nothing in the run.

    Ranks at the same place are shown together, the largest group first; the last line names those that
    stand elsewhere than the others.

    \b
    ddpctl stacks
    ddpctl stacks 20261121 --hosts hosts.yaml
    """
    from launcher.runs import stacks as showing
    from launcher.runs.find import find

    console = options.console(quiet, verbose)
    return showing.stacks(find(run, hosts), console, all_threads=all_threads, as_json=as_json)
