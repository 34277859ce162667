"""Arguments and flags that several commands share."""

import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand

from ..errors import UsageError
from ..terminal.console import Console
from . import complete


class OptionalValues(TyperCommand):
    """A command with options whose value may be missing, and is then empty.

    optional: by option, a function that tells whether the next word is its value. typer itself has
    no such options.
    """

    optional: ClassVar[Mapping[str, Callable[[str], bool]]]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        pairs = zip(args, [*args[1:], ""], strict=False)
        words = [
            f"{word}=" if word in self.optional and not self.optional[word](after) else word
            for word, after in pairs
        ]
        return super().parse_args(ctx, words)


class WithFolders(OptionalValues):
    optional: ClassVar = dict.fromkeys(
        ("--dataset", "--workdir"), lambda word: word != "" and Path(word).is_dir()
    )


class WithCommandLine(OptionalValues):
    """A command that takes another command line after `--` and leaves it in `context.args`."""

    optional: ClassVar = {"--wait": lambda word: word[:1].isdigit()}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        if at == len(args):
            self._refuse_flags_of_the_script(ctx, args)
        rest = super().parse_args(ctx, args[:at])
        ctx.args = args[at + 1 :]
        return rest

    def _refuse_flags_of_the_script(self, ctx: Any, args: list[str]) -> None:
        """Exit with a hint if a flag after the script is not one of ours: the user forgot `--`.

        The script is `-m`, `--no-python`, a name in .py, or the second word that is neither a flag
        nor the value of one.
        """
        takes_value: dict[str, bool] = {}
        for param in self.get_params(ctx):
            takes_value |= dict.fromkeys(param.opts, not getattr(param, "is_flag", True))
        script, positional, words = None, 0, iter(enumerate(args))
        for at, word in words:
            flag = word.partition("=")[0].replace("_", "-")
            if not word.startswith("-"):
                positional += 1
            elif script is not None and not {flag, word[:2]} & {*takes_value}:  # -qv, -Ha:8
                line = shlex.join([*args[:script], "--", *args[script:]])
                Console().error(f"put `--` before the command: {ctx.command_path} {line}")
                raise typer.Exit(2)
            elif takes_value.get(word.replace("_", "-")):
                next(words, None)
            is_script = word in ("-m", "--no-python") or word.endswith(".py") or positional == 2
            if is_script and script is None:
                script = at


def flag(name: str, help: str, *more: str) -> Any:
    """Return a typer option that is True if the flag is given. more: its short form."""
    return typer.Option(False, name, *more, help=help)


def option(name: str, help: str, *more: str, default: object = None, **how: Any) -> Any:
    """Return a typer option that takes a value. how: further arguments of typer.Option."""
    return typer.Option(default, name, *more, help=help, **how)


def argument(metavar: str, help: str, completed_by: Callable[..., object] | None = None) -> Any:
    return typer.Argument(None, metavar=metavar, help=help, autocompletion=completed_by)


def hosts_option(help: str) -> Any:
    return option("--hosts", help, metavar="HOSTS", autocompletion=complete.hosts_files)


HOSTS = argument(
    "[HOSTS]", "A hosts file or a DeepSpeed hostfile (default: ./hosts.yaml).", complete.hosts_files
)
HOST_LIST = option("-H", "Use these hosts instead of a file.", metavar="HOST:GPUS,...")
INCLUDE = option("--include", "Use only these, such as gpu1@gpu2:0,2.", metavar="HOST[:GPUS]@...")
EXCLUDE = option("--exclude", "Skip these, such as gpu1@gpu2:0,2.", metavar="HOST[:GPUS]@...")
RUN = argument("[RUN]", "A run id or a unique prefix (default: the newest run).", complete.runs)
RUN_OR_HOSTS = argument(
    "[RUN or HOSTS]", "A run id, a unique prefix, or a hosts file.", complete.runs_or_hosts_files
)
LOOK_ON = hosts_option("Look for the run on these hosts.")
IMAGE = option("--image", "Override job.image.")
ON_EXIT = option("--on-exit", "Run CMD with sh when the run ends.", metavar="CMD")
ON_EVENT = option("--on-event", "Run CMD with sh for each event of the run.", metavar="CMD")
DETACH = flag("--detach", "Start the run, print its id and return.", "-d")
FOLD = flag("--fold", "Merge identical lines from several ranks: `[0-5] text`.")
PLAIN = flag("--plain", "Print plain lines, no live panel (default when not a TTY).")
JSON = flag("--json", "Print one JSON document on stdout.")
YES = flag("--yes", "Do not ask for confirmation.", "-y")
QUIET = flag("--quiet", "Print only errors on stderr.", "-q")
VERBOSE = flag("--verbose", "Print each step on stderr.", "-v")


def console(quiet: bool, verbose: bool, plain: bool = False, fold: bool = False) -> Console:
    made = Console(quiet=quiet, verbose=verbose, plain=plain)
    if fold:
        from ..logs.fold_lines import Fold

        made.fold = Fold()
    return made


def hosts_of(hosts: str | None, host_list: str | None) -> str | None:
    """Return HOSTS or -H; None if neither is given. Raises UsageError if both are."""
    if hosts and host_list:
        raise UsageError(f"hosts given twice, as {hosts!r} and with -H; use only one")
    from ..hosts import HostList

    return HostList(host_list) if host_list else hosts or None


def can_ask() -> bool:
    """Return whether a terminal is available for questions to the user."""
    return sys.stdin.isatty() and sys.stderr.isatty()
