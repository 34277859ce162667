"""Start the recorder, a process that takes care of a run while no command follows it."""

import contextlib
import json
import selectors
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from ..errors import CommandFailed, StateError
from ..outcomes import Outcome, RunState
from ..own_folders import is_locked, locked
from ..runs.record import RunFolder
from ..terminal.console import Console

READY = b"ready\n"
RECORDER = f"{__package__.rpartition('.')[0]}.start.recorder"
LOCK = ".recorder.lock"
START_LOCK = ".recorder-start.lock"
WAITING_LOCK = "waiting.lock"  # locked by the process that waits in line for the run or starts it
START_TIMEOUT = 30.0  # seconds for the recorder to report that it has started

# -I removes the current directory, PYTHONPATH and the user's site packages from the import path.
# BOOT replaces this path with that of the command that starts the recorder.
BOOT = """
import importlib, json, sys
sys.path[:] = json.loads(sys.argv.pop(1))
sys.exit(importlib.import_module(sys.argv.pop(1)).main())
"""


def detach(folder: RunFolder, state: RunState, console: Console) -> Outcome:
    """Leave the run to a recorder on this machine. Print the run id."""
    console.print(folder.run_id)
    start_recorder(folder, state)
    console.say(f"detached; to follow the run again, run `ddpctl attach {folder.run_id}`")
    return Outcome(state)


def start_recorder(folder: RunFolder, state: RunState = RunState.RUNNING) -> None:
    """Start a recorder outside this terminal's session, and wait until it is ready.

    Raises CommandFailed if it does not start. The error says what that means for a run in `state`.
    """
    log = folder.path / "recorder.log"
    try:
        with log.open("ab") as out:
            boot = [sys.executable, "-I", "-c", BOOT, json.dumps(import_path()), RECORDER]
            argv, null, pipe = [*boot, str(folder.path)], subprocess.DEVNULL, subprocess.PIPE
            # in the current folder, where a local run without a workdir has its script
            process = subprocess.Popen(
                argv, stdin=null, stdout=pipe, stderr=out, start_new_session=True
            )
        assert process.stdout is not None
        with process.stdout as answer, selectors.DefaultSelector() as selector:
            selector.register(answer, selectors.EVENT_READ)
            if selector.select(START_TIMEOUT) and answer.readline() == READY:
                return
        process.kill()
        why = (log.read_text(errors="replace").strip().splitlines() or ["it printed nothing"])[-1]
    except OSError as error:
        why = f"{error.filename or log}: {error.strerror}"
    fate = "the run continues, but its recorder did not start"
    remedy = f"follow it with `ddpctl attach {folder.run_id}`; "
    remedy += "the launcher will not restart it, and --on-exit will not run"
    if state is RunState.WAITING:
        fate = "the run is no longer waiting in line, because its recorder did not start"
        remedy = f"to try again, run `ddpctl resume {folder.run_id}`"
    raise CommandFailed(f"{folder.run_id}: {fate}: {why}", remedy)


def ensure_recorder(folder: RunFolder, state: RunState = RunState.RUNNING) -> None:
    """Start a recorder unless the run has one. Raises the errors of `start_recorder`.

    Of several commands that call this at the same moment, only one starts a recorder.
    """
    with contextlib.ExitStack() as only_this_command:
        with contextlib.suppress(StateError):  # then the recorder cannot start either, and says why
            only_this_command.enter_context(locked(folder.path / START_LOCK))
        if not has_recorder(folder):
            start_recorder(folder, state)


@contextlib.contextmanager
def taken_care_of(folder: RunFolder) -> Iterator[None]:
    """Context manager: like `recording`, for the command that has started the run.

    Then `attach` leaves the log and the restarts to that command. Does nothing on a file system
    without locks.
    """
    with contextlib.ExitStack() as lock:
        with contextlib.suppress(StateError):
            lock.enter_context(recording(folder))
        yield


def recording(folder: RunFolder) -> AbstractContextManager[None]:
    """Context manager: hold the lock that shows other processes that the run has a recorder."""
    return locked(folder.path / LOCK, shared=True)


def has_recorder(folder: RunFolder) -> bool:
    """Return whether a process on this machine is taking care of the run.

    That is a recorder, or the command that started the run. Both do so even between attempts.
    """
    return is_locked(folder.path / LOCK)


def is_being_started(folder: RunFolder) -> bool:
    """Return whether a process on this machine is waiting for the run's turn or starting an attempt."""
    return is_locked(folder.path / WAITING_LOCK)


def import_path() -> list[str]:
    """Return this process's import path, without the current directory but always with ddpctl."""
    here = str(Path.cwd()) if Path().exists() else ""
    package = str(Path(__file__).resolve().parents[2])
    paths = [path for path in sys.path if Path(path).is_absolute() and path != here]
    return paths if package in paths else [package, *paths]
