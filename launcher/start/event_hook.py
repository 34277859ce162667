"""--on-event: the user's command, run for each event of a run, with the event in its environment.

The command that follows the run runs it and, once that has detached or left, the recorder. Commands run
one after the other, in the order of the events, and delay nothing else.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from pathlib import Path

from ..runs.record import RunFolder, RunRecord
from ..terminal.console import Console
from .exit_hook import environment, keep_command, run_command

KEPT = "on-event"
TIMEOUT = 60.0  # seconds for a command


class EventHook:
    """Does nothing without a command. close() waits for the commands of all events so far."""

    def __init__(self, folder: RunFolder, command: str | None, console: Console) -> None:
        self._folder, self._console, self._command = folder, console, command
        self._events: queue.Queue[Mapping[str, str] | None] = queue.Queue()
        self._worker: threading.Thread | None = None

    def __call__(self, event: str, record: RunRecord, **values: object) -> None:
        """values: host, node_rank, exit_code, message: what the event says."""
        if self._command is None:
            return
        if self._worker is None:
            self._worker = threading.Thread(target=self._work, daemon=True)
            self._worker.start()
        named = {f"DDPCTL_{name.upper()}": str(value) for name, value in values.items()}
        blank = dict.fromkeys(("DDPCTL_HOST", "DDPCTL_NODE_RANK", "DDPCTL_MESSAGE"), "")
        base = environment(self._folder, record, None)
        self._events.put({**base, **blank, **named, "DDPCTL_EVENT": event})

    def close(self) -> None:
        if self._worker:
            self._events.put(None)
            self._worker.join()

    def _work(self) -> None:
        while (values := self._events.get()) is not None:
            run_command(self._command or "", values, "--on-event", self._console, TIMEOUT)


def keep(folder: RunFolder, command: str | None) -> None:
    """For the recorder, until the next attempt: a command line may hold a token, so not in run.json."""
    if command is None:
        _path(folder).unlink(missing_ok=True)
    else:
        keep_command(_path(folder), command)


def kept(folder: RunFolder) -> str | None:
    try:
        return _path(folder).read_text()
    except (OSError, ValueError):
        return None


def _path(folder: RunFolder) -> Path:
    return folder.path / KEPT
