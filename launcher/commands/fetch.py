"""ddpctl fetch"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options


def fetch(
    run: options.Run = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR", help="Destination folder (default: ./RUN)."),
    ] = None,
    hosts: options.LookOn = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> int:
    """Copy a run's checkpoints, output and logs to this machine.

    Each file is checked against its sha256 on the host. Files that are already here are skipped, and
    an interrupted transfer continues where it was cut off.

    \b
    ddpctl fetch
    ddpctl fetch 20261121 --to results/
    """
    from ..runs import fetch as fetch_run
    from ..runs.find import find

    console = options.console(quiet, verbose)
    folder = find(run, hosts, console)
    return fetch_run.fetch(folder, to or Path(folder.run_id), console, as_json=as_json)
