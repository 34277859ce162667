"""The `ddpctl` command line: commands in the order of `--help`, errors, exit codes.

Command modules import their dependencies inside the command's function to keep `--help` fast.
"""

import enum
import functools
import logging
import resource
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import typer
from typer.completion import completion_init, install_callback, show_callback  # type: ignore

from . import __version__
from .commands.usage import COMMANDS, Command, CommandGroup, ParserError, usage_error
from .errors import DdpctlError
from .outcomes import Exit, Outcome
from .own_folders import keep_traceback
from .terminal.console import Console

EPILOG = (
    "Start with `ddpctl init`. `ddpctl help COMMAND` explains a command. Exit codes: 0 done, 1 the run "
    "failed, 2 usage or hosts file, 3 check, 4 host not reached, 5 push, 6 stop not confirmed, "
    "7 cancelled, 130 interrupted."
)
Shell = enum.StrEnum("Shell", "bash zsh fish")  # those that Tab completion supports


def main() -> None:
    """Run the command line; exit with a code of docs/exit-codes.md. typer exits with 2 on usage errors."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a followed node takes three
    application()(prog_name="ddpctl")


def application() -> typer.Typer:
    app = typer.Typer(
        name="ddpctl",
        cls=Ddpctl,
        help="Launch PyTorch DDP training in containers on several hosts over plain SSH.",
        epilog=EPILOG,
        subcommand_metavar="COMMAND ...",
        invoke_without_command=True,
        add_completion=False,  # typer's own options guess the shell, and guess wrong in scripts
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={
            "help_option_names": ["-h", "--help"],
            "token_normalize_func": lambda name: name.replace("_", "-"),  # as torchrun spells flags
        },
    )
    app.callback()(root)
    for name in COMMANDS:
        function = getattr(import_module(f".commands.{name}", __package__), name)
        app.command(name, cls=Command)(exiting(function))
    completion_init()
    return app


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ddpctl {__version__}")
        raise typer.Exit


def root(
    ctx: typer.Context,
    version: bool = typer.Option(
        False, "--version", "-V", callback=_version, is_eager=True, help="Print the version."
    ),
    install_completion: Shell | None = typer.Option(
        None,
        callback=install_callback,
        metavar="SHELL",
        help="Install Tab completion for bash, zsh or fish.",
    ),
    show_completion: Shell | None = typer.Option(
        None, callback=show_callback, metavar="SHELL", help="Print the completion script."
    ),
) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help(), err=True)
        raise typer.Exit(Exit.USAGE)


class Ddpctl(CommandGroup):
    """`ddpctl` itself: it prints the error that ends a command, and exits."""

    def main(self, *args: Any, **how: Any) -> Any:
        try:
            # without standalone_mode, typer returns the code of typer.Exit
            code = super().main(*args, **{**how, "standalone_mode": False})
        except DdpctlError as error:
            code = error.exit_code
            Console().error(str(error))
        except ParserError as error:
            code = Exit.USAGE
            Console().error(str(usage_error(error)))
        except typer.Abort:
            code = Exit.INTERRUPTED
            Console().error("interrupted")
        sys.exit(code)


def exiting(function: Callable[..., int | Outcome | None]) -> Callable[..., None]:
    """Wrap a command for typer: its outcome or a bug becomes the exit code. None: 0."""

    @functools.wraps(function)
    def command(*args: object, **kwargs: object) -> None:
        try:
            result = function(*args, **kwargs)
            code = result.exit if isinstance(result, Outcome) else result or Exit.DONE
        except (typer.Exit, typer.Abort, DdpctlError):
            raise
        except KeyboardInterrupt:
            raise typer.Abort from None
        except Exception as error:
            notes = getattr(error, "__notes__", ())
            Console().error("; ".join([f"internal error, {keep_traceback(error)}", *notes]))
            code = Exit.INTERNAL
        finally:
            logging.getLogger("ddpctl").handlers.clear()  # of the command's console
        raise typer.Exit(code)

    return command
