"""ddpctl logs"""

from __future__ import annotations

from typing import Annotated

import typer

from . import complete, options


def logs(
    run: options.Run = None,
    hosts: options.LookOn = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing until the run ends.")
    ] = False,
    node: Annotated[
        str | None, typer.Option("--node", metavar="K", help="Only these nodes, such as 0-3,5.")
    ] = None,
    rank: Annotated[
        str | None, typer.Option("--rank", metavar="R", help="Only these ranks, such as 0-3,5.")
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host", help="Only this host; repeatable.", autocompletion=complete.host_names
        ),
    ] = None,
    attempt: Annotated[
        int | None, typer.Option("--attempt", metavar="N", help="Only this attempt.")
    ] = None,
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
    ddpctl logs 20261121 --rank 0-3,8 --tail 100
    ddpctl logs --fold --grep loss
    """
    from ..follow.show_logs import LogFlags, pattern, show_logs, since_time
    from ..runs.find import find

    flags = LogFlags(node, rank, tuple(host or ()), attempt, tail, since_time(since), pattern(grep))
    console = options.console(quiet, verbose, fold=fold)
    return show_logs(find(run, hosts, console), flags, console, follow=follow)
