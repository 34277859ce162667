"""The `ddpctl` command line: registers the commands, prints errors and sets the exit code.

Command modules import their dependencies inside the command's function to keep `--help` fast.
"""

import atexit
import enum
import functools
import gc
import logging
import resource
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import typer
from typer.completion import completion_init, install_callback, show_callback  # type: ignore

from . import __version__
from .commands.parsing import COMMANDS, Command, CommandGroup, ParserError, usage_error
from .errors import DdpctlError, exit_of
from .outcomes import Exit, Outcome
from .own_folders import keep_traceback
from .terminal.console import Console
from .terminal.streams import abandon, reserve

EPILOG = (
    "Start with `ddpctl init`. `ddpctl help COMMAND` explains a command. Exit codes: 0 done, 1 run "
    "failed, 2 wrong usage or hosts file, 3 check failed, 4 host unreachable, 5 push failed, 6 stop not "
    "confirmed, 7 cancelled, 130 interrupted."
)
Shell = enum.StrEnum("Shell", "bash zsh fish")  # the shells that Tab completion supports


def main() -> None:
    """Run the command line, and exit with one of the codes in docs/exit-codes.md."""
    # Python spends a sixth of a short command's CPU time on garbage, most of it at the end. The imports
    # of a launch make 100,000 objects and no garbage.
    gc.set_threshold(200_000)
    atexit.register(gc.freeze)
    reserve("stdin")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # following a node takes three file descriptors
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    application()(prog_name="ddpctl")


def application() -> typer.Typer:
    app = typer.Typer(
        name="ddpctl",
        cls=Ddpctl,
        help="Launch PyTorch DDP training in containers on several hosts over plain SSH.",
        epilog=EPILOG,
        subcommand_metavar="COMMAND ...",
        invoke_without_command=True,
        add_completion=False,  # typer's own options guess the wrong shell in scripts
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={
            "help_option_names": ["-h", "--help"],
            # torchrun spells flags with underscores
            "token_normalize_func": lambda name: name.replace("_", "-"),
        },
    )
    app.callback()(root)
    for name in COMMANDS:
        function = getattr(import_module(f".commands.{name}", __package__), name)
        app.command(name, cls=Command)(with_exit_code(function))
    completion_init()
    return app


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ddpctl {__version__}")
        raise typer.Exit


def root(
    ctx: typer.Context,
    version: bool = typer.Option(
        False,
        "--version",
        "-V",
        callback=_version,
        is_eager=True,
        help="Print the version and exit.",
    ),
    install_completion: Shell | None = typer.Option(
        None,
        callback=install_callback,
        metavar="SHELL",
        help="Install Tab completion for bash, zsh or fish.",
    ),
    show_completion: Shell | None = typer.Option(
        None, callback=show_callback, metavar="SHELL", help="Print the completion script and exit."
    ),
) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help(), err=True)
        raise typer.Exit(Exit.USAGE)


class Ddpctl(CommandGroup):
    """The top-level command. Prints the error that ended a command, and exits with its code."""

    def main(self, *args: Any, **how: Any) -> Any:
        try:
            # without standalone_mode, typer returns the command's result or the code of typer.Exit
            code = super().main(*args, **{**how, "standalone_mode": False})
        except DdpctlError as error:
            code = exit_of(error)
            Console().error(str(error))
        except ParserError as error:
            code = Exit.USAGE
            Console().error(str(usage_error(error)))
        except typer.Abort:
            code = Exit.INTERRUPTED
            Console().error("interrupted")
        except OSError as error:  # typer could not print --help or --version
            code = Exit.FAILED
            abandon(sys.stdout)
            Console().error(f"stdout: {error.strerror}")
        sys.exit(code)


def with_exit_code(function: Callable[..., int | Outcome | None]) -> Callable[..., int]:
    """Wrap a command for typer: return the exit code of its result (0 for None), or 70 after a bug."""

    @functools.wraps(function)
    def command(*args: object, **kwargs: object) -> int:
        try:
            result = function(*args, **kwargs)
            code = result.exit if isinstance(result, Outcome) else result or Exit.DONE
        except (typer.Exit, typer.Abort, DdpctlError):
            raise
        except KeyboardInterrupt:
            raise typer.Abort from None
        except Exception as error:
            Console().error(f"internal error, {keep_traceback(error)}")
            code = exit_of(error)
        finally:
            logging.getLogger("ddpctl").handlers.clear()  # added by the command's console
        return code

    return command
