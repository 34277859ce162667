"""Starting the recorder, which looks after a run that no command is following."""

from __future__ import annotations

import fcntl
import json
import selectors
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ..errors import CommandFailed
from ..runs.record import RunFolder
from . import exit_hook

READY = b"ready\n"
RECORDER = f"{__package__}.recorder"
LOCK = ".recorder.lock"
START_TIMEOUT = 30.0  # seconds for the recorder to report that it has started

# -I keeps the current directory, PYTHONPATH and the user's site out of the imports; the path of the
# command that starts the recorder is given instead.
BOOT = """
import importlib, json, sys
sys.path[:] = json.loads(sys.argv.pop(1))
sys.exit(importlib.import_module(sys.argv.pop(1)).main())
"""


def start_recorder(folder: RunFolder) -> None:
    """Starts it outside this terminal's session, and waits until it has; it ends with the run.

    Raises CommandFailed if it does not start.
    """
    log = folder.path / "recorder.log"
    try:
        exit_hook.hand_over(folder)
        with log.open("ab") as out:
            process = _start(folder, out)
        assert process.stdout is not None
        with process.stdout as answer, selectors.DefaultSelector() as selector:
            selector.register(answer, selectors.EVENT_READ)
            if selector.select(START_TIMEOUT) and answer.readline() == READY:
                return
        process.kill()
        why = (log.read_text(errors="replace").strip().splitlines() or ["it printed nothing"])[-1]
    except OSError as error:
        why = f"{error.filename or log}: {error.strerror}"
    raise CommandFailed(
        f"{folder.run_id}: the run goes on, but its recorder did not start: {why}; "
        f"keep `ddpctl attach {folder.run_id}` running for its logs, restarts and --on-exit"
    )


@contextmanager
def recording(folder: RunFolder) -> Iterator[None]:
    """Inside, other processes of this machine see that the run has a recorder."""
    with (folder.path / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield


def has_recorder(folder: RunFolder) -> bool:
    """Whether a process of this machine looks after the run, between its attempts too."""
    try:
        with (folder.path / LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _start(folder: RunFolder, stderr: BinaryIO) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-c", BOOT, json.dumps(import_path()), RECORDER, str(folder.path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        cwd="/",
        start_new_session=True,
    )


def import_path() -> list[str]:
    """This process's import path without the current directory, but with ddpctl itself."""
    here = str(Path.cwd()) if Path().exists() else ""
    package = str(Path(__file__).resolve().parents[2])
    paths = [path for path in sys.path if Path(path).is_absolute() and path != here]
    return paths if package in paths else [package, *paths]
