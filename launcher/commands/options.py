"""Arguments and flags that several commands share, and the values that flags take."""

import logging
import math
import os
from collections.abc import Callable
from typing import Any

import typer

from ..errors import UsageError
from ..terminal.console import Console, WarningHandler
from ..text import duration_remedy, quoted, seconds_in
from . import complete


def flag(name: str, help: str, *more: str) -> Any:
    """Return a typer option that is True if the flag is given. more: its short form."""
    return typer.Option(False, name, *more, help=help)


def option(
    name: str,
    metavar: str,
    help: str,
    *more: str,
    default: object = None,
    reader: Callable[[str, str], object] | None = None,
    completed_by: Callable[..., object] | None = None,
) -> Any:
    """Return a typer option that takes a value. more: its short form. reader(flag, value): parses it."""

    def parse(text: str) -> object:  # older versions of typer need a named function
        return reader(name, text) if reader else text

    how: dict[str, Any] = {"parser": reader and parse, "autocompletion": completed_by}
    return typer.Option(default, name, *more, metavar=metavar, help=help, **how)


def argument(metavar: str, help: str, completed_by: Callable[..., object] | None = None) -> Any:
    return typer.Argument(None, metavar=metavar, help=help, autocompletion=completed_by)


def number(least: int, most: int = 10**9) -> Callable[[str, str], int]:
    """Return a reader of whole numbers from `least` to `most`."""

    def read(flag: str, text: str) -> int:
        if text.isdecimal() and len(text) < 12 and least <= int(text) <= most:
            return int(text)
        limit = f"a number from {least} to {most}" if most < 10**9 else f"{least} or more"
        raise UsageError(f"{flag} {quoted(text)}: not a valid number", f"pass {limit}")

    return read


def decimal(flag: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"{flag} {quoted(text)}: not a number above 0", "pass one such as 12.5")
    return value


def seconds(flag: str, text: str) -> int:
    """Read a duration. Raises UsageError for other text. Only 0 needs no unit."""
    if (read := seconds_in(text)) is None:
        raise UsageError(f"{flag} {quoted(text)}: not a duration", duration_remedy(text))
    return read


def some_seconds(flag: str, text: str) -> int:
    """Read a duration above zero. Raises UsageError for other text."""
    if not (read := seconds(flag, text)):
        raise UsageError(f"{flag} {quoted(text)}: too short", "pass a duration such as 30s")
    return read


def hosts_file_or_list(_: str, text: str) -> str:
    """Read --hosts. A single host name becomes a list of one: `gpu1,`."""
    from ..hosts.hostfile import SCHEDULERS

    is_file = text.endswith((".yaml", ".yml")) or "/" in text or os.path.exists(text)  # noqa: PTH110
    is_known = is_file or "," in text or text in SCHEDULERS
    return text if is_known or not text else f"{text},"


def hosts_option(help: str, completed_by: Any = None) -> Any:
    return option(
        "--hosts", "HOSTS", help, "-H", reader=hosts_file_or_list, completed_by=completed_by
    )


HOSTS = argument("[HOSTS]", "A hosts file or a DeepSpeed hostfile (default: ./hosts.yaml).")
HOST_LIST = hosts_option("Use these hosts: a file, or a list such as gpu1:8,gpu2:8.")
INCLUDE = option(
    "--include", "HOST[:GPUS]@...", "Use only these hosts or GPUs, such as gpu1@gpu2:0,2."
)
EXCLUDE = option("--exclude", "HOST[:GPUS]@...", "Skip these hosts or GPUs, such as gpu1@gpu2:0,2.")
JOB = option("--job", "FILE", "Read the job from FILE, not from the hosts file.")
RUN = argument(
    "[RUN]",
    "A run id or a unique prefix of one, or HOSTS for your newest run there (default: the newest run "
    "recorded on this machine).",
    complete.runs,
)
LOOK_ON = hosts_option("Look for the run on these hosts: a file, or a list such as gpu1,gpu2.")
HOST = option("--host", "HOST", "Only lines of HOST; repeatable.", completed_by=complete.host_names)
IMAGE = option("--image", "IMAGE", "Override job.image.")
ON_EXIT = option("--on-exit", "CMD", "Run CMD with sh when the run has ended.")
ON_EVENT = option(
    "--on-event",
    "CMD",
    "Run CMD with sh when an attempt starts or ends, the run restarts in place, a node ends, or a host is "
    "lost or back.",
)
DETACH = flag("--detach", "Start the run, print its id and return.", "-d")
FOLD = flag("--fold", "Merge identical lines from several ranks: `[0-5] text`.")
PLAIN = flag("--plain", "Print plain lines and no live panel (default without a terminal).")
JSON = flag("--json", "Print one JSON document on stdout.")
YES = flag("--yes", "Do not ask for confirmation.", "-y")
QUIET = flag("--quiet", "Print only errors on stderr.", "-q")
VERBOSE = flag("--verbose", "Print each step on stderr.", "-v")


def console(
    quiet: bool, verbose: bool, plain: bool = False, fold: bool = False, results: bool = True
) -> Console:
    made = Console(quiet=quiet, verbose=verbose, plain=plain, fold=fold, results=results)
    logging.getLogger("ddpctl").handlers = [WarningHandler(made)]
    return made


def hosts_of(hosts: str | None, flagged: str | None) -> str | None:
    """Return HOSTS or --hosts; None if neither is given. Raises UsageError if both are."""
    if hosts and flagged:
        raise UsageError(f"hosts given twice, as {quoted(hosts)} and with -H", "pass one of them")
    return flagged or hosts or None
