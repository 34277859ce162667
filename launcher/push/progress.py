"""The progress of a push, on stderr: one bar per host on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Self

from rich.console import Console as RichConsole
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as RichProgress

from ..terminal.console import Console
from ..terminal.sanitize import plain
from .report import format_bytes

INTERVAL = 10.0  # seconds between plain lines about one host


def progress_for(console: Console) -> Progress:
    plain = console.quiet or console.plain or os.environ.get("TERM") == "dumb"
    return Progress(console) if plain or not sys.stderr.isatty() else Bars(console)


class Progress:
    """A line when a host has something, and one every ten seconds until then.

    `host` and `part` (image, dataset, workdir) name a row. Safe to use from many threads.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rows: dict[tuple[str, str], _Row] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        self._console.say(text)

    def begin(self, host: str, part: str, total: int) -> None:
        """total: bytes, 0 if unknown."""
        with self._lock:
            self._rows[host, part] = _Row(total)

    def advance(self, host: str, part: str, count: int) -> None:
        with self._lock:
            row = self._rows.setdefault((host, part), _Row(0))
            row.done += count
            due = time.monotonic() - row.shown > INTERVAL
            if due:
                row.shown = time.monotonic()
                text = row.text()
        if due:
            self.say(f"{host}: {part}: {text}")

    def end(self, host: str, part: str) -> None:
        with self._lock:
            row = self._rows.pop((host, part), None)
        if row is not None and row.done:
            self.say(f"{host}: {part}: {row.final_text()}")


class _Row:
    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self.began = self.shown = time.monotonic()

    @property
    def seconds(self) -> float:
        return max(time.monotonic() - self.began, 1e-3)

    def text(self) -> str:
        rate = f"{format_bytes(self.done / self.seconds)}/s"
        if not self.total:
            return f"{format_bytes(self.done)}, {rate}"
        left = max(self.total - self.done, 0) * self.seconds / max(self.done, 1)
        return f"{format_bytes(self.done)} of {format_bytes(self.total)}, {rate}, {left:.0f} s left"

    def final_text(self) -> str:
        rate = format_bytes(self.done / self.seconds)
        return f"{format_bytes(self.done)} in {self.seconds:.1f} s ({rate}/s)"


class Bars(Progress):
    """rich's bars, shown only while something is being transferred."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._bars = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=RichConsole(stderr=True, soft_wrap=True),
            transient=True,
        )
        self._tasks: dict[tuple[str, str], TaskID] = {}

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def say(self, text: str) -> None:
        self._bars.console.print(f"ddpctl: {plain(text)}", markup=False, highlight=False)

    def begin(self, host: str, part: str, total: int) -> None:
        with self._lock:
            self._bars.start()
            self._tasks[host, part] = self._bars.add_task(f"{host} {part}", total=total or None)

    def advance(self, host: str, part: str, count: int) -> None:
        self._bars.advance(self._tasks[host, part], count)

    def end(self, host: str, part: str) -> None:
        with self._lock:
            task = self._tasks[host, part]
            done = max(self._bars.tasks[self._bars.task_ids.index(task)].completed, 1)
            self._bars.update(task, total=done, completed=done)
