"""ddpctl report"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from launcher.commands import options


def report(
    run: options.Run = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Default: ./RUN.html.")
    ] = None,
    hosts: options.LookOn = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> int:
    """Write one HTML page about a run.

    It has hosts, timeline, first failure, curves and how to repeat the run.

    The page needs no network and holds no value of the run's environment. The curves come from
    metrics.jsonl under the run's output folder, where our trainer's rank 0 writes for all ranks.

    \b
    ddpctl report
    ddpctl report 20261121 -o overnight.html
    """
    from launcher.report.making import make
    from launcher.runs.find import find

    console = options.console(quiet, verbose)
    folder = find(run, hosts, console)
    return make(folder, out or Path(f"{folder.run_id}.html"), console)
