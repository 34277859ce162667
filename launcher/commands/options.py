"""Arguments and flags that several commands share, and what they turn into."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from launcher.commands import complete
from launcher.errors import UsageError

if TYPE_CHECKING:
    from launcher.terminal.console import Console

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors on stderr.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print each step on stderr.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Hosts = Annotated[
    str | None,
    typer.Argument(
        metavar="HOSTS",
        help="A hosts file or a DeepSpeed hostfile.",
        autocompletion=complete.hosts_files,
    ),
]
HostList = Annotated[
    str | None, typer.Option("-H", metavar="HOST:GPUS,...", help="Hosts instead of a file.")
]
Run = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN]",
        help="A run id or its beginning (default: the newest run).",
        autocompletion=complete.runs,
    ),
]
RunOrHosts = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN or HOSTS]",
        help="A run id or its beginning, or a hosts file.",
        autocompletion=complete.runs_or_hosts_files,
    ),
]
LookOn = Annotated[
    str | None,
    typer.Option(
        "--hosts",
        metavar="HOSTS",
        help="Look for the run on these hosts.",
        autocompletion=complete.hosts_files,
    ),
]
Plain = Annotated[
    bool, typer.Option("--plain", help="Print lines, no live panel (default if not a TTY).")
]
Folded = Annotated[
    bool,
    typer.Option("--fold", help="Fold identical lines of several ranks: `[0-5] text`."),
]
OnExit = Annotated[
    str | None,
    typer.Option("--on-exit", metavar="CMD", help="Run CMD with `sh -c` when the run has ended."),
]
Detach = Annotated[
    bool, typer.Option("--detach", "-d", help="Start the run, print its id and return.")
]
Image = Annotated[str | None, typer.Option("--image", help="Override job.image.")]


def console(quiet: bool, verbose: bool, plain: bool = False, fold: bool = False) -> Console:
    from launcher.terminal.console import Console

    made = Console(quiet=quiet, verbose=verbose, plain=plain)
    if fold:
        from launcher.logs.fold import Fold

        made.fold = Fold()
    return made


def hosts_of(hosts: str | None, host_list: str | None) -> str:
    """The hosts argument or -H; both or neither is an error."""
    if hosts and host_list:
        raise UsageError(f"both {hosts!r} and -H name hosts; give one of them")
    if not hosts and not host_list:
        raise UsageError("no hosts: give a hosts file (see hosts.example.yaml) or -H gpu1:8,gpu2:8")
    from launcher.hosts import HostList

    return hosts or HostList(host_list)
