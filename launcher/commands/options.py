"""Arguments and flags that several commands share."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ..errors import UsageError
from ..terminal.console import Console
from . import complete


class WithCommandLine(TyperCommand):
    """A command that takes another command line after `--`; it is left in `context.args`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        if at == len(args):
            self._refuse_flags_of_the_script(ctx, args)
        rest = super().parse_args(ctx, with_values(args[:at]))
        ctx.args = args[at + 1 :]
        return rest

    def _refuse_flags_of_the_script(self, ctx: Any, args: list[str]) -> None:
        """Exits where a flag after the script is none of ours: `--` was forgotten.

        The script is `-m`, a name with .py, or the second word that is neither flag nor value.
        """
        takes_value: dict[str, bool] = {}
        for param in self.get_params(ctx):
            takes_value |= dict.fromkeys(param.opts, not getattr(param, "is_flag", True))
        script, words, is_value = None, 0, False
        for at, word in enumerate(args):
            if is_value:
                is_value = False
                continue
            flag = word.partition("=")[0].replace("_", "-")
            known = flag if flag in takes_value else word[:2]  # -qv, -Ha:8
            if not word.startswith("-"):
                words += 1
            elif script is not None and known not in takes_value:
                line = shlex.join([*args[:script], "--", *args[script:]])
                Console().error(f"put `--` before the command: {ctx.command_path} {line}")
                raise typer.Exit(2)
            else:
                is_value = takes_value.get(word.replace("_", "-"), False)
            if script is None and (
                word in ("-m", "--no-python") or word.endswith(".py") or words == 2
            ):
                script = at


def with_values(args: list[str]) -> list[str]:
    """`--wait` alone gets the value that stands for it: typer has no option whose value may be absent."""
    words: list[str] = []
    for place, word in enumerate(args):
        following = args[place + 1] if place + 1 < len(args) else ""
        bare = word == "--wait" and not following[:1].isdigit()
        words.append(f"--wait={FOREVER}" if bare else word)
    return words


class WithFolders(TyperCommand):
    """A command whose --dataset and --workdir may name a folder, as those of `launch` do."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words: list[str] = []
        for word in args:
            flag, equals, folder = word.partition("=")
            if flag in _FOLDERS and equals:
                words += [flag, f"{flag}-folder", folder]
            elif words and words[-1] in _FOLDERS and Path(word).is_dir():
                words += [f"{words[-1]}-folder", word]
            else:
                words.append(word)
        return super().parse_args(ctx, words)


_FOLDERS = ("--dataset", "--workdir")

FOREVER = "forever"  # the value of `--wait` without one

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors on stderr.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print each step on stderr.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Hosts = Annotated[
    str | None,
    typer.Argument(
        metavar="[HOSTS]",
        help="A hosts file or a DeepSpeed hostfile (default: ./hosts.yaml).",
        autocompletion=complete.hosts_files,
    ),
]
HostList = Annotated[
    str | None, typer.Option("-H", metavar="HOST:GPUS,...", help="Hosts instead of a file.")
]
Include = Annotated[
    str | None,
    typer.Option("--include", metavar="HOST[:GPUS]@...", help="Only these, such as gpu1@gpu2:0,2."),
]
Exclude = Annotated[
    str | None,
    typer.Option(
        "--exclude", metavar="HOST[:GPUS]@...", help="All but these, such as gpu1@gpu2:0,2."
    ),
]
Run = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN]",
        help="A run id or a unique prefix (default: the newest run).",
        autocompletion=complete.runs,
    ),
]
RunOrHosts = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN or HOSTS]",
        help="A run id, a unique prefix, or a hosts file.",
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
    bool, typer.Option("--plain", help="Print plain lines, no live panel (default when not a TTY).")
]
Folded = Annotated[
    bool,
    typer.Option("--fold", help="Print identical lines of many ranks as one: `[0-5] text`."),
]
OnExit = Annotated[
    str | None,
    typer.Option("--on-exit", metavar="CMD", help="Run CMD with sh when the run has ended."),
]
OnEvent = Annotated[
    str | None,
    typer.Option("--on-event", metavar="CMD", help="Run CMD with sh for each event of the run."),
]
Detach = Annotated[
    bool, typer.Option("--detach", "-d", help="Start the run, print its id and return.")
]
Image = Annotated[str | None, typer.Option("--image", help="Override job.image.")]


def console(quiet: bool, verbose: bool, plain: bool = False, fold: bool = False) -> Console:
    made = Console(quiet=quiet, verbose=verbose, plain=plain)
    if fold:
        from ..logs.fold import Fold

        made.fold = Fold()
    return made


def hosts_of(hosts: str | None, host_list: str | None) -> str:
    """HOSTS or -H, else ./hosts.yaml. Raises UsageError with both, or with none of the three."""
    if hosts and host_list:
        raise UsageError(f"both {hosts!r} and -H name hosts; give one of them")
    from ..hosts import HostList, default_hosts

    return HostList(host_list) if host_list else hosts or default_hosts()


def can_ask() -> bool:
    """Whether there is a terminal to ask the user on."""
    return sys.stdin.isatty() and sys.stderr.isatty()
