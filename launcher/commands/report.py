"""ddpctl report"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options


def report(
    run: options.Run = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Where to write it (default: RUN.html)."),
    ] = None,
    hosts: options.LookOn = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> int:
    """Write one HTML page about a run.

    It has the plan, hosts, timeline, first failure, curves and the commands to run it again.

    The page loads nothing from the network and contains no value of the run's environment. The curves
    come from metrics.jsonl in the run's output folder, which the trainer's rank 0 writes.

    \b
    ddpctl report
    ddpctl report 20261121 -o overnight.html
    """
    from ..report.making import make
    from ..runs.find import find

    console = options.console(quiet, verbose)
    folder = find(run, hosts, console)
    return make(folder, out or Path(f"{folder.run_id}.html"), console)
