"""Arguments and flags that several commands share."""

import logging
import shlex
import sys
from collections.abc import Callable
from itertools import islice
from typing import Any

import typer
from typer.core import TyperCommand

from ..errors import UsageError
from ..outcomes import Exit
from ..terminal.console import Console, WarningHandler
from ..text import quoted
from . import complete


class WithCommandLine(TyperCommand):
    """A command whose parameter `command` is everything after `--`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        if not ctx.resilient_parsing:  # not while completing
            self._refuse_script(ctx, args[:end], args[end + 1 :])
        rest = super().parse_args(ctx, args[:end])
        ctx.params["command"] = args[end + 1 :]
        return rest

    def _refuse_script(self, ctx: Any, args: list[str], command: list[str]) -> None:
        """Exit with the right command line if `args` contain a script, which belongs after `--`.

        The first word that is neither a flag nor the value of one is HOSTS or RUN, unless it ends
        in .py or -H gives the hosts. What follows and is no flag of ours belongs to the script.
        """
        takes_value: dict[str, bool] = {}
        for param in self.get_params(ctx):
            takes_value |= dict.fromkeys(param.opts, not getattr(param, "is_flag", True))
        ours: list[str] = []
        script: list[str] = []
        has_hosts = any(word.startswith("-H") for word in args)
        words = iter(args)
        for word in words:
            name = word.replace("_", "-")
            if {name.partition("=")[0], word[:2]} & takes_value.keys():  # -qv, -Ha:8
                ours += [word, *(islice(words, 1) if takes_value.get(name) else ())]
            elif script or has_hosts or word.startswith("-") or word.endswith(".py"):
                script.append(word)
            else:
                ours.append(word)
                has_hosts = True
        if not script or (script[0].startswith("-") and script[0] not in ("-m", "--no-python")):
            return  # typer names an unknown flag
        line = shlex.join([*ours, "--", *script, *command])
        hint = f"put `--` before the command: {ctx.command_path} {line}"
        if "--wait" in ours and script[0][0].isdigit():
            hint = f"--wait takes no value; write --wait-limit {script[0]}"
        Console().error(hint)
        raise typer.Exit(Exit.USAGE)


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
    "HOSTS", "A hosts file or a DeepSpeed hostfile (default: ./hosts.yaml).", complete.hosts_files
)
HOST_LIST = option("-H", "Use these hosts instead of a file.", metavar="HOST:GPUS,...")
INCLUDE = option("--include", "Use only these, such as gpu1@gpu2:0,2.", metavar="HOST[:GPUS]@...")
EXCLUDE = option("--exclude", "Skip these, such as gpu1@gpu2:0,2.", metavar="HOST[:GPUS]@...")
RUN = argument("RUN", "A run id or a unique prefix (default: the newest run).", complete.runs)
RUN_OR_HOSTS = argument(
    "RUN or HOSTS", "A run id, a unique prefix, or a hosts file.", complete.runs_or_hosts_files
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
    made = Console(quiet=quiet, verbose=verbose, plain=plain, fold=fold)
    logging.getLogger("ddpctl").handlers = [WarningHandler(made)]
    return made


def hosts_of(hosts: str | None, host_list: str | None) -> str | list[str] | None:
    """Return HOSTS, or -H as a list; None if neither is given. Raises UsageError if both are."""
    if hosts and host_list:
        raise UsageError(f"hosts given twice, as {quoted(hosts)} and with -H", "pass one of them")
    return host_list.split(",") if host_list else hosts or None


def can_ask() -> bool:
    """Return whether a terminal is available for questions to the user."""
    return sys.stdin.isatty() and sys.stderr.isatty()
