"""The `ddpctl` command: which commands there are, in the order of `--help`; errors and exit codes.

Command modules import what is heavy (paramiko, docker) inside their functions, so that
`ddpctl --help` answers at once.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable
from typing import Annotated

import typer

from launcher import __version__
from launcher.commands import (
    attach,
    check,
    clean,
    fetch,
    init,
    kill,
    launch,
    logs,
    ps,
    push,
    report,
    resume,
    sanity,
    stacks,
)
from launcher.errors import DdpctlError

COMMANDS: dict[str, Callable[..., int]] = {
    "check": check.check,
    "push": push.push,
    "launch": launch.launch,
    "resume": resume.resume,
    "kill": kill.kill,
    "ps": ps.ps,
    "logs": logs.logs,
    "attach": attach.attach,
    "fetch": fetch.fetch,
    "sanity": sanity.sanity,
    "stacks": stacks.stacks,
    "report": report.report,
    "init": init.init,
    "clean": clean.clean,
}


def exiting(function: Callable[..., int]) -> Callable[..., None]:
    """The command, with its return value as exit code and every error of ours as its lines."""

    @functools.wraps(function)
    def command(*args: object, **kwargs: object) -> None:
        try:
            code = function(*args, **kwargs)
        except DdpctlError as error:
            _say(str(error))
            code = error.exit_code
        except KeyboardInterrupt:
            _say("interrupted")
            code = 130
        except BrokenPipeError:  # stdout went away: not worth a word, as in every filter
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 0
        raise typer.Exit(code)

    return command


def application(names: Iterable[str]) -> typer.Typer:
    """The program with these of its commands: typer takes a while for each."""
    app = typer.Typer(
        name="ddpctl",
        help="Launch PyTorch DistributedDataParallel training in containers on several hosts over SSH.",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name in names:
        app.command(name)(exiting(COMMANDS[name]))
    app.callback()(root)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ddpctl {__version__}")
        raise typer.Exit


def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """The command line. Exit codes: CONTRACT section 6; typer itself exits 2 on usage."""
    own, launch.after_dashes = split_command(sys.argv[1:])
    application([own[0]] if own and own[0] in COMMANDS else COMMANDS)(args=own)


def split_command(argv: list[str]) -> tuple[list[str], list[str] | None]:
    """What stands before the first `--` is ours, what stands after it is torchrun's to run.

    Both spellings of a flag are understood: --nproc_per_node is --nproc-per-node.
    """
    own, command = argv, None
    if "--" in argv:
        at = argv.index("--")
        own, command = argv[:at], argv[at + 1 :]
    return [_dashes(argument) for argument in own], command


def _dashes(argument: str) -> str:
    if not argument.startswith("--"):
        return argument
    flag, equals, value = argument.partition("=")
    return flag.replace("_", "-") + equals + value


def _say(text: str) -> None:
    for line in text.splitlines():
        print(f"ddpctl: error: {line}", file=sys.stderr)
