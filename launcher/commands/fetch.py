"""ddpctl fetch"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from launcher.commands import options


def fetch(
    run: options.Run = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="Where to; default: ./RUN.")
    ] = None,
    hosts: options.LookOn = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> int:
    """Checkpoints, metrics and logs of a run to this machine, each file verified by its sha256.

    What is there already is not fetched again; a file that was cut off goes on where it was.

    \b
    ddpctl fetch
    ddpctl fetch 20261121 --to results/
    """
    from launcher.runs import fetch as fetching
    from launcher.runs.find import find

    folder = find(run, hosts)
    console = options.console(quiet, verbose)
    return fetching.fetch(folder, to or Path(folder.run_id), console, as_json=as_json)
