"""ddpctl resume"""

from __future__ import annotations

from typing import Annotated

import typer

from . import complete, options


def resume(
    target: options.RunOrHosts = None,
    hosts: Annotated[
        str | None,
        typer.Option(
            "--hosts",
            metavar="HOSTS",
            help="Resume on these hosts instead.",
            autocompletion=complete.hosts_files,
        ),
    ] = None,
    detach: options.Detach = False,
    force: Annotated[
        bool, typer.Option("--force", help="Resume even if the run has succeeded.")
    ] = False,
    on_exit: options.OnExit = None,
    on_event: options.OnEvent = None,
    fold: options.Folded = False,
    plain: options.Plain = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> int:
    """Start a run's next attempt from its newest checkpoint.

    \b
    ddpctl resume
    ddpctl resume 20261121-1530 --hosts fewer.yaml
    """
    from ..start import resume as resuming

    console = options.console(quiet, verbose, plain, fold)
    hooks = {"on_exit": on_exit, "on_event": on_event}
    return resuming.resume(target, hosts, console, detach=detach, force=force, **hooks)
