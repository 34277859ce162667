"""How a push looks while it runs: a bar a host on a terminal, plain lines elsewhere, on stderr."""

from __future__ import annotations

import os
import sys
import threading
import time
from types import TracebackType
from typing import Any, Protocol

from launcher.push.report import in_words
from launcher.terminal.console import Console

EVERY = 10.0  # seconds between plain lines about one host


class Progress(Protocol):
    """`host` and `what` (image, dataset, workdir) tell the rows apart. Safe in many threads."""

    def __enter__(self) -> Progress: ...
    def __exit__(self, kind: object, error: object, trace: TracebackType | None) -> None: ...
    def say(self, text: str) -> None: ...
    def begin(self, host: str, what: str, total: int) -> None:
        """`total` is in bytes, 0 when nobody knows."""

    def advance(self, host: str, what: str, count: int) -> None: ...
    def end(self, host: str, what: str) -> None: ...


def progress_for(console: Console) -> Progress:
    plain = console.quiet or console.plain or os.environ.get("TERM") == "dumb"
    if not plain and sys.stderr.isatty():
        return Bars(console)
    return Lines(console)


class Lines:
    """One line when a host has something, and one each ten seconds while that lasts."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rows: dict[tuple[str, str], _Row] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        self._console.say(text)

    def begin(self, host: str, what: str, total: int) -> None:
        with self._lock:
            self._rows[host, what] = _Row(total)

    def advance(self, host: str, what: str, count: int) -> None:
        with self._lock:
            row = self._rows.setdefault((host, what), _Row(0))
            row.done += count
            due = time.monotonic() - row.told > EVERY
            if due:
                row.told = time.monotonic()
                text = row.text()
        if due:
            self.say(f"{host}: {what}: {text}")

    def end(self, host: str, what: str) -> None:
        with self._lock:
            row = self._rows.pop((host, what), None)
        if row is not None and row.done:
            self.say(f"{host}: {what}: {row.text(ended=True)}")


class _Row:
    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self.began = self.told = time.monotonic()

    def text(self, *, ended: bool = False) -> str:
        seconds = max(time.monotonic() - self.began, 1e-3)
        rate = f"{in_words(self.done / seconds)}/s"
        if ended:
            return f"{in_words(self.done)} in {seconds:.1f} s ({rate})"
        if not self.total:
            return f"{in_words(self.done)}, {rate}"
        left = max(self.total - self.done, 0) * seconds / max(self.done, 1)
        return f"{in_words(self.done)} of {in_words(self.total)}, {rate}, {left:.0f} s left"


class Bars:
    """rich's bars; they are there only while something travels."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: Any = None
        self._tasks: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Bars:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            bars, self._bars = self._bars, None
            if bars is not None:
                bars.stop()

    def say(self, text: str) -> None:
        with self._lock:
            if self._bars is None:
                self._console.say(text)
            else:
                self._bars.console.print(f"ddpctl: {text}", markup=False, highlight=False)

    def begin(self, host: str, what: str, total: int) -> None:
        with self._lock:
            if self._bars is None:
                self._bars = _bars()
                self._bars.start()
            label = f"{host} {what}"
            self._tasks[host, what] = self._bars.add_task(label, total=total or None)

    def advance(self, host: str, what: str, count: int) -> None:
        with self._lock:
            if self._bars is not None and (host, what) in self._tasks:
                self._bars.advance(self._tasks[host, what], count)

    def end(self, host: str, what: str) -> None:
        with self._lock:
            task = self._tasks.pop((host, what), None)
            if self._bars is not None and task is not None:
                done = self._bars.tasks[self._bars.task_ids.index(task)].completed
                self._bars.update(task, total=max(done, 1), completed=max(done, 1))


def _bars() -> Any:
    from rich.console import Console as RichConsole
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as RichProgress

    return RichProgress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=RichConsole(stderr=True),
        transient=True,
    )
