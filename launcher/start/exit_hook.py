"""--on-exit: the user's command, run once when a run has ended, with the outcome in its environment.

It stays in the run's folder until the run ends. Whatever follows the run to its end takes it: the
command that launched the run or, once detached, the recorder. Taking is a rename, so it runs once.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..diagnosis.first_failure import headline
from ..errors import DdpctlError
from ..runs.record import RunFolder, RunRecord
from ..state import current_folder, write_atomically
from ..terminal.console import Console

KEPT = "on-exit"
HANDED_OVER = "on-exit.detached"  # for the recorder to run
LIVE = ("WAITING", "PENDING", "RUNNING")


@dataclass
class Ending:
    """The exit code of the run, set while it is followed."""

    code: int = 1


def keep(folder: RunFolder, command: str) -> None:
    """Not in run.json, which goes to the hosts: a command line may hold a token."""
    keep_command(folder.path / KEPT, command)


def keep_command(path: Path, command: str) -> None:
    """It is to run in the current directory, wherever the process that runs it is."""
    folder_now = shlex.quote(str(current_folder()))
    write_atomically(path, f"cd {folder_now} 2>/dev/null\n{command}", mode=0o600)


def hand_over(folder: RunFolder) -> None:
    """Leaves it to the recorder."""
    with contextlib.suppress(FileNotFoundError):
        (folder.path / KEPT).rename(folder.path / HANDED_OVER)


@contextlib.contextmanager
def at_the_end(folder: RunFolder, console: Console, kept: str = KEPT) -> Iterator[Ending]:
    """Runs the kept command after the block, if the run has ended by then in any way."""
    ending = Ending()
    try:
        yield ending
    except DdpctlError as error:
        ending.code = error.exit_code
        raise
    finally:
        path = folder.path / kept
        record = folder.load_if_readable(console) if path.exists() else None
        if record is None and path.exists():
            console.say(f"warning: the --on-exit command did not run; it is in {path}")
        if record and record.state not in LIVE:
            taken = path.with_name(f"{kept}.{os.getpid()}")
            try:
                path.rename(taken)
                command = taken.read_text()
                taken.unlink()
            except FileNotFoundError:
                pass  # another process took it
            except (OSError, ValueError) as error:
                console.say(f"warning: {path}: cannot run the --on-exit command: {error}")
            else:
                call(command, folder, record, ending.code, console)


def call(command: str, folder: RunFolder, record: RunRecord, code: int, console: Console) -> None:
    run_command(command, environment(folder, record, code), "--on-exit", console)


def run_command(
    command: str,
    values: Mapping[str, str],
    flag: str,
    console: Console,
    timeout: float | None = None,
) -> None:
    """Runs it with its output on stderr: stdout carries the run's lines. Never raises.

    What hosts say reaches it as environment variables only, never as part of the command.
    """
    env = {**os.environ, **{name: value.replace("\0", "") for name, value in values.items()}}
    try:
        done = subprocess.run(
            ["sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            env=env,
            check=False,
            timeout=timeout,
        )
    except OSError as error:
        console.say(f"warning: could not start the {flag} command: {error.strerror}")
    except subprocess.TimeoutExpired:
        console.say(f"warning: the {flag} command was killed after {timeout:g} s")
    else:
        if done.returncode:
            console.say(f"warning: the {flag} command exited with {done.returncode}")


def environment(folder: RunFolder, record: RunRecord, code: int | None) -> dict[str, str]:
    """The outcome as environment variables; empty where there is nothing to say."""
    failure = record.attempt.first_failure
    return {
        "DDPCTL_HOOK": "1",  # distinguishes this process from those of the run
        "DDPCTL_RUN_ID": record.run_id,
        "DDPCTL_NAME": record.name,
        "DDPCTL_STATE": record.state,
        "DDPCTL_EXIT_CODE": "" if code is None else str(code),
        "DDPCTL_ATTEMPT": str(record.attempt.attempt),
        "DDPCTL_RUN_DIR": str(folder.path),
        "DDPCTL_FIRST_FAILURE": headline(failure) if failure else "",
        "DDPCTL_FAILED_HOST": failure.host if failure else "",
    }
