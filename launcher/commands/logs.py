"""ddpctl logs"""

from __future__ import annotations

from typing import Annotated

import typer

from launcher.commands import options


def logs(
    run: options.Run = None,
    hosts: options.LookOn = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing until the run ends.")
    ] = False,
    node: Annotated[int | None, typer.Option("--node", help="Only lines of this node.")] = None,
    rank: Annotated[int | None, typer.Option("--rank", help="Only lines of this rank.")] = None,
    tail: Annotated[
        int | None,
        typer.Option("--tail", "-n", min=0, max=10**9, metavar="N", help="Only the last N lines."),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="T", help="Since 10m or 2h ago, or a time.")
    ] = None,
    grep: Annotated[
        str | None, typer.Option("--grep", metavar="REGEX", help="Only lines that match.")
    ] = None,
    fold: options.Folded = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> int:
    """Print the logs of all nodes of a run, merged by time.

    \b
    ddpctl logs -f
    ddpctl logs 20261121 --rank 3 --tail 100
    ddpctl logs --fold --grep loss
    """
    import re
    import time

    from launcher.errors import UsageError
    from launcher.follow.show_logs import show_logs
    from launcher.logs.query import Wanted, parse_since
    from launcher.runs.find import find

    try:
        wanted = Wanted(
            node=node,
            rank=rank,
            grep=re.compile(grep.encode()) if grep is not None else None,
            since=parse_since(since, time.time()) if since is not None else None,
            tail=tail,
        )
    except re.error as error:
        raise UsageError(f"--grep {grep!r}: not a regular expression: {error}") from None
    except (ValueError, OverflowError):
        raise UsageError(
            f"--since {since!r}: give 30s, 10m, 2h, 3d or a time such as 2026-11-21T15:30:00Z"
        ) from None
    console = options.console(quiet, verbose, fold=fold)
    return show_logs(find(run, hosts, console), wanted, console, follow=follow)
