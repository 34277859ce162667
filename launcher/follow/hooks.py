"""The user's hooks: --on-exit, run once after the run has ended, and --on-event, for each event.

Hooks get the outcome in their environment. The run's folder keeps their commands for the process
that follows the run: the launching command or, once that has ended, the recorder. The commands are
not in run.json, because run.json is sent to the hosts and a command may contain a token.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..errors import exit_of
from ..outcomes import Exit, Outcome, RunState
from ..own_folders import current_folder, read_record, write_atomically
from ..plan.launch_options import LaunchOptions
from ..runs.record import RunRecord
from ..runs.run_folder import RunFolder
from ..supervisor.proc import descendants, send
from ..terminal.console import Console
from ..text import duration

ON_EXIT = "on-exit"
ON_EVENT = "on-event"
EVENT_TIMEOUT = 60.0  # seconds for --on-event to handle one event


def keep(folder: RunFolder, options: LaunchOptions) -> None:
    """Store the --on-exit command until the run ends, and --on-event until the next attempt.

    The commands will run in the current directory.
    """
    (folder.path / ON_EVENT).unlink(missing_ok=True)
    for name, command in ((ON_EXIT, options.on_exit), (ON_EVENT, options.on_event)):
        if command is not None:
            text = f"cd {shlex.quote(str(current_folder()))} 2>/dev/null\n{command}"
            write_atomically(folder.path / name, text, mode=0o600)


def event_command(folder: RunFolder) -> str | None:
    try:
        return read_record(folder.path / ON_EVENT)
    except (OSError, ValueError):
        return None


class ExitHook(contextlib.AbstractContextManager["ExitHook"]):
    """Runs the stored --on-exit command at the end of the block, unless the run is still live.

    The recorder of a live run runs the command later. An UNKNOWN run does not count as live. Set
    `outcome` before the block ends.
    """

    def __init__(self, folder: RunFolder, console: Console) -> None:
        self._folder, self._console = folder, console
        self.outcome = Outcome(RunState.FAILED)

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        path = self._folder.path / ON_EXIT
        if self.outcome.state.is_live or not path.exists():
            return
        code = exit_of(error) if error else self.outcome.exit
        record = self._folder.load_if_readable(self._console)
        if record is None:
            self._console.say(f"warning: the --on-exit command did not run; it is in {path}")
        elif not record.state.is_live and (command := self._take(path)):
            run_on_exit(command, self._folder, record, code, self._console)

    def _take(self, path: Path) -> str | None:
        """Return the command and delete its file; None if that fails or another process has taken it."""
        try:
            command = read_record(path)
            path.unlink()  # succeeds in only one process
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                self._console.say(f"warning: {path}: cannot run the --on-exit command: {error}")
            return None
        return command


def run_on_exit(
    command: str, folder: RunFolder, record: RunRecord, code: Exit, console: Console
) -> None:
    _run(command, _environment(folder, record, code), "--on-exit", console)


class EventHook(contextlib.AbstractContextManager["EventHook"]):
    """Runs `command` in the background, for one event at a time. Does nothing if `command` is None.

    The end of a `with` block waits until all queued events have been handled.
    """

    def __init__(self, folder: RunFolder, command: str | None, console: Console) -> None:
        self._folder, self._console, self._command = folder, console, command
        self._commands = ThreadPoolExecutor(1)

    def __call__(self, event: str, record: RunRecord, **values: object) -> None:
        """Queue an event. values: its host, node_rank, exit_code and message, if it has them."""
        if self._command is None:
            return
        named = {"host": "", "node_rank": "", "message": "", **values, "event": event}
        env = _environment(self._folder, record, None)
        env |= {f"DDPCTL_{name.upper()}": str(value) for name, value in named.items()}
        self._commands.submit(_run, self._command, env, "--on-event", self._console, EVENT_TIMEOUT)

    def close(self) -> None:
        self._commands.shutdown()

    def __exit__(self, *_: object) -> None:
        self.close()


def _run(
    command: str, values: Mapping[str, str], flag: str, console: Console, limit: float | None = None
) -> None:
    """Run a hook with its output on stderr, because stdout has the run's lines. Never raises.

    limit: the seconds after which the hook is killed, with all that it has started.

    Text from hosts reaches the hook only in environment variables, never in the command.
    """
    env = {**os.environ, **{name: value.replace("\0", "") for name, value in values.items()}}
    try:
        shell, null, err = ["sh", "-c", command], subprocess.DEVNULL, 2
        with contextlib.suppress(OSError):  # in some notebooks, sys.stderr is not a file
            err = sys.stderr.fileno()
        with subprocess.Popen(shell, stdin=null, stdout=err, env=env) as process:
            try:
                code = process.wait(limit)
            except BaseException:
                with contextlib.suppress(OSError):  # macOS has no /proc
                    for pid in descendants(process.pid):
                        send(pid, signal.SIGKILL)
                process.kill()
                raise
    except OSError as error:
        console.say(f"warning: could not start the {flag} command: {error.strerror}")
    except subprocess.TimeoutExpired as expired:
        console.say(f"warning: the {flag} command was killed after {duration(expired.timeout)}")
    else:
        if code:
            console.say(f"warning: the {flag} command exited with {code}")


def _environment(folder: RunFolder, record: RunRecord, code: Exit | None) -> dict[str, str]:
    """Return the outcome as environment variables; unknown values are empty."""
    failure = record.attempt.first_failure
    return {
        "DDPCTL_HOOK": "1",  # distinguishes hooks from processes of the run
        "DDPCTL_RUN_ID": record.run_id,
        "DDPCTL_NAME": record.name,
        "DDPCTL_STATE": record.state,
        "DDPCTL_EXIT_CODE": "" if code is None else str(int(code)),
        "DDPCTL_ATTEMPT": str(record.attempt.number),
        "DDPCTL_RUN_DIR": str(folder.path),
        "DDPCTL_FIRST_FAILURE": failure.headline if failure else "",
        "DDPCTL_FAILED_HOST": failure.host if failure else "",
    }
