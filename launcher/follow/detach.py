"""Leave a run to a recorder: a process on this machine that takes care of it while no command follows it.

The recorder inherits the lock of the newest attempt (runs/attempt_lock.py).
"""

import json
import selectors
import subprocess
import sys
from pathlib import Path
from typing import IO

from ..errors import CommandFailed, DdpctlError
from ..outcomes import Outcome, RunState
from ..runs.attempt_lock import lock_to_hand_over
from ..runs.run_folder import RunFolder
from ..terminal.console import Console

READY = b"ready\n"
RECORDER = f"{__package__.rpartition('.')[0]}.start.recorder"
START_TIMEOUT = 30.0  # seconds for the recorder to report that it has started

# -I removes the current directory, PYTHONPATH and the user's site packages from the import path.
# BOOT replaces this path with that of the command that starts the recorder.
BOOT = """
import importlib, json, sys
sys.path[:] = json.loads(sys.argv.pop(1))
sys.exit(importlib.import_module(sys.argv.pop(1)).main())
"""


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
        with lock_to_hand_over(folder) as lock:
            if lock:
                start_recorder(folder, lock)
    except DdpctlError as error:
        fate = "the run continues, but its recorder did not start"
        remedy = f"follow the run with `ddpctl attach {folder.run_id}`, because it will not be "
        remedy += "restarted and --on-exit will not run"
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
