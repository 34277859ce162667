"""The process on this machine that takes care of a run, and the lock that shows it to other commands.

It waits in line for an attempt, starts it, records it and, if the job allows that, restarts the run. At
first, it is the command that starts the attempt. If that command leaves the run, it hands the attempt's
lock over to a recorder, a process that takes care of the run while no command follows it. Each attempt
has a lock of its own, because the recorder of an earlier one may never end if its hosts are gone.
"""

import contextlib
import json
import os
import selectors
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ..errors import CommandFailed, DdpctlError, UsageError
from ..outcomes import Outcome, RunState
from ..own_folders import is_locked, make_folder, try_lock
from ..runs.run_folder import RunFolder, UnreadableRecord
from ..terminal.console import Console

READY = b"ready\n"
RECORDER = f"{__package__.rpartition('.')[0]}.start.recorder"
START_TIMEOUT = 30.0  # seconds for the recorder to report that it has started

_held: dict[Path, IO[str]] = {}  # the locks that this process holds, by path

# -I removes the current directory, PYTHONPATH and the user's site packages from the import path.
# BOOT replaces this path with that of the command that starts the recorder.
BOOT = """
import importlib, json, sys
sys.path[:] = json.loads(sys.argv.pop(1))
sys.exit(importlib.import_module(sys.argv.pop(1)).main())
"""


def take_care(folder: RunFolder, attempt: int) -> None:
    """Lock the attempt unless this process holds the lock.

    Raises UsageError if another process holds it, and StateError if the file system has no locks.
    """
    path = folder.attempt_lock(attempt)
    if path not in _held:
        make_folder(folder.path)
        if not (lock := try_lock(path)):
            what = (
                f"another command on this machine is starting attempt {attempt} of {folder.run_id}"
            )
            remedy = f"once it has started, follow it with `ddpctl attach {folder.run_id}`"
            raise UsageError(what, remedy)
        _held[path] = lock


def is_cancelled(folder: RunFolder, attempt: int) -> bool:
    """Return whether `kill` has removed this process's lock of the attempt (RunFolder.cancel_start)."""
    path = folder.attempt_lock(attempt)
    if not (lock := _held.get(path)):
        return False
    try:
        return not os.path.samestat(os.fstat(lock.fileno()), path.stat())
    except FileNotFoundError:
        return True


@contextlib.contextmanager
def locks_released_at_end(folder: RunFolder) -> Iterator[None]:
    """Context manager: at the end, release the locks that `take_care` took in the block.

    If the block has not recorded the run, remove its folder.
    """
    try:
        yield
    finally:
        for path in [path for path in _held if path.parent == folder.path]:
            with contextlib.suppress(OSError):
                if not folder.is_recorded:
                    path.unlink()
                    folder.path.rmdir()
            _held.pop(path).close()


def is_taken_care_of(folder: RunFolder) -> bool:
    """Return whether a process on this machine is taking care of the run's newest attempt."""
    with contextlib.suppress(UnreadableRecord):
        return is_locked(folder.attempt_lock(folder.load().attempt.number))
    return False


def detach(folder: RunFolder, state: RunState, console: Console) -> Outcome:
    """Leave the run to a recorder on this machine. Print the run id. Return the outcome."""
    console.print(folder.run_id)
    ensure_recorder(folder, state)
    console.say(f"detached; to follow the run again, run `ddpctl attach {folder.run_id}`")
    return Outcome(state)


def ensure_recorder(folder: RunFolder, state: RunState = RunState.RUNNING) -> None:
    """Start a recorder for the newest attempt, unless another process takes care of it.

    Raises CommandFailed if it does not start. The error says what that means for a run in `state`.
    """
    try:
        path = folder.attempt_lock(folder.load().attempt.number)
        with contextlib.ExitStack() as own:
            if not (lock := _held.get(path)):
                if not (lock := try_lock(path)):
                    return
                own.enter_context(lock)
            start_recorder(folder, lock)
    except DdpctlError as error:
        fate = "the run continues, but its recorder did not start"
        remedy = f"follow it with `ddpctl attach {folder.run_id}`; "
        remedy += "the launcher will not restart it, and --on-exit will not run"
        if state is RunState.WAITING:
            fate = "the run is no longer waiting in line, because its recorder did not start"
            remedy = f"to try again, run `ddpctl resume {folder.run_id}`"
        raise CommandFailed(f"{folder.run_id}: {fate}: {error.what}", remedy) from None


def start_recorder(folder: RunFolder, lock: IO[str]) -> None:
    """Start a recorder outside this terminal's session, and wait until it is ready.

    It inherits the attempt's lock. Raises CommandFailed with the reason if it does not start.
    """
    log = folder.path / "recorder.log"
    try:
        with log.open("ab") as out:
            boot = [sys.executable, "-I", "-c", BOOT, json.dumps(import_path()), RECORDER]
            argv, null, pipe = [*boot, str(folder.path)], subprocess.DEVNULL, subprocess.PIPE
            # in the current folder, where a local run without a workdir has its script
            process = subprocess.Popen(
                argv,
                stdin=null,
                stdout=pipe,
                stderr=out,
                start_new_session=True,
                pass_fds=[lock.fileno()],
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
    raise CommandFailed(why)


def import_path() -> list[str]:
    """Return this process's import path, without the current directory but always with ddpctl."""
    here = str(Path.cwd()) if Path().exists() else ""
    package = str(Path(__file__).resolve().parents[2])
    paths = [path for path in sys.path if Path(path).is_absolute() and path != here]
    return paths if package in paths else [package, *paths]
