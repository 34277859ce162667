"""The user's commands: --on-exit, once when the run has ended, and --on-event, for each event of it.

They get what happened in their environment. The run's folder keeps them, for whatever follows the
run: the command that launched it or, once that has left, the recorder. run.json does not have them:
it goes to the hosts, and a command line may hold a token.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ..diagnosis.first_failure import headline
from ..errors import DdpctlError
from ..plan.options import LaunchOptions
from ..runs.record import RunFolder, RunRecord
from ..state import current_folder, write_atomically
from ..terminal.console import Console

ON_EXIT = "on-exit"
HANDED_OVER = "on-exit.detached"  # for the recorder to run
ON_EVENT = "on-event"
EVENT_TIMEOUT = 60.0  # seconds for the command of an event
LIVE = ("WAITING", "PENDING", "RUNNING")


def keep(folder: RunFolder, options: LaunchOptions) -> None:
    """Until the run has ended; the command for events until the next attempt."""
    if options.on_exit is not None:
        _keep(folder.path / ON_EXIT, options.on_exit)
    if options.on_event is not None:
        _keep(folder.path / ON_EVENT, options.on_event)
    else:
        (folder.path / ON_EVENT).unlink(missing_ok=True)


def _keep(path: Path, command: str) -> None:
    """It is to run in the current directory, wherever the process that runs it is."""
    folder_now = shlex.quote(str(current_folder()))
    write_atomically(path, f"cd {folder_now} 2>/dev/null\n{command}", mode=0o600)


def kept_for_events(folder: RunFolder) -> str | None:
    try:
        return (folder.path / ON_EVENT).read_text()
    except (OSError, ValueError):
        return None


def hand_over(folder: RunFolder) -> None:
    """Leave the command of --on-exit to the recorder."""
    with contextlib.suppress(FileNotFoundError):
        (folder.path / ON_EXIT).rename(folder.path / HANDED_OVER)


@dataclass
class Ending:
    """The exit code of the run, set while it is followed."""

    code: int = 1


@contextlib.contextmanager
def at_the_end(folder: RunFolder, console: Console, kept: str = ON_EXIT) -> Iterator[Ending]:
    """Run the kept command after the block, if the run has ended by then in any way."""
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
                path.rename(taken)  # so it runs once
                command = taken.read_text()
                taken.unlink()
            except FileNotFoundError:
                pass  # another process took it
            except (OSError, ValueError) as error:
                console.say(f"warning: {path}: cannot run the --on-exit command: {error}")
            else:
                run_on_exit(command, folder, record, ending.code, console)


def run_on_exit(
    command: str, folder: RunFolder, record: RunRecord, code: int, console: Console
) -> None:
    _run(command, _environment(folder, record, code), "--on-exit", console)


class EventHook:
    """Runs the command for one event after the other and delays nothing else; without one, nothing.

    close() waits for the commands of all events so far.
    """

    def __init__(self, folder: RunFolder, command: str | None, console: Console) -> None:
        self._folder, self._console, self._command = folder, console, command
        self._commands = ThreadPoolExecutor(1)

    def __call__(self, event: str, record: RunRecord, **values: object) -> None:
        """values: host, node_rank, exit_code, message: what the event says."""
        if self._command is None:
            return
        blank = dict.fromkeys(("DDPCTL_HOST", "DDPCTL_NODE_RANK", "DDPCTL_MESSAGE"), "")
        named = {f"DDPCTL_{name.upper()}": str(value) for name, value in values.items()}
        base = _environment(self._folder, record, None)
        env = {**base, **blank, **named, "DDPCTL_EVENT": event}
        self._commands.submit(_run, self._command, env, "--on-event", self._console, EVENT_TIMEOUT)

    def close(self) -> None:
        self._commands.shutdown()


def _run(
    command: str,
    values: Mapping[str, str],
    flag: str,
    console: Console,
    timeout: float | None = None,
) -> None:
    """Run it with its output on stderr: stdout carries the run's lines. Never raises.

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


def _environment(folder: RunFolder, record: RunRecord, code: int | None) -> dict[str, str]:
    """Return the outcome as environment variables; empty where there is nothing to say."""
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
