"""The progress of a push: its counters, and bars or plain lines on stderr."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Self

from rich.console import Console as RichConsole
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as Bars

from ..ssh.node import Node
from ..terminal.console import Console
from ..terminal.sanitize import plain
from .report import HostReport, PushReport, format_bytes

INTERVAL = 10.0  # seconds between plain lines about one host


def progress_for(console: Console) -> Progress:
    lines = console.quiet or console.plain or os.environ.get("TERM") == "dumb"
    return Progress(console, bars=not lines and sys.stderr.isatty())


class Progress:
    """Shows a bar per host, or lines: one every ten seconds and one at the end.

    `host` and `part` (image, dataset, workdir) name a row. Thread-safe.
    """

    def __init__(self, console: Console, *, bars: bool = False) -> None:
        self._console = console
        self._bars = Bars(  # visible only during a transfer
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=RichConsole(stderr=True, soft_wrap=True),
            transient=True,
            disable=not bars,
        )
        self._tasks: dict[tuple[str, str], Task] = {}
        self._shown: dict[tuple[str, str], float] = {}  # time of the last line about it
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._bars.disable:
            self._bars.stop()

    def say(self, text: str) -> None:
        if self._bars.disable:
            self._console.say(text)
        else:
            self._bars.console.print(f"ddpctl: {plain(text)}", markup=False, highlight=False)

    def begin(self, host: str, part: str, total: int) -> None:
        """Start a row. total: bytes; 0 if unknown."""
        with self._lock:
            self._bars.start()
            number = self._bars.add_task(f"{host} {part}", total=total or None)
            self._tasks[host, part] = self._bars.tasks[number]
            self._shown[host, part] = time.monotonic()

    def advance(self, host: str, part: str, count: int) -> None:
        with self._lock:
            task = self._tasks[host, part]
            self._bars.advance(task.id, count)
            due = time.monotonic() - self._shown[host, part] > INTERVAL
            if due:
                self._shown[host, part] = time.monotonic()
        if due and self._bars.disable:
            self.say(f"{host}: {part}: {_so_far(task)}")

    def end(self, host: str, part: str) -> None:
        with self._lock:
            task = self._tasks[host, part]
            done, seconds = task.completed, _seconds(task)
            self._bars.update(task.id, total=max(done, 1), completed=max(done, 1))
        if self._bars.disable and done:
            rate = format_bytes(done / seconds)
            self.say(f"{host}: {part}: {format_bytes(done)} in {seconds:.1f} s ({rate}/s)")


def _seconds(task: Task) -> float:
    return max(task.elapsed or 0.0, 1e-3)


def _so_far(task: Task) -> str:
    rate = f"{format_bytes(task.completed / _seconds(task))}/s"
    if not task.total:
        return f"{format_bytes(task.completed)}, {rate}"
    left = max(task.total - task.completed, 0) * _seconds(task) / max(task.completed, 1)
    return (
        f"{format_bytes(task.completed)} of {format_bytes(task.total)}, {rate}, {left:.0f} s left"
    )


class Tracker:
    """The counters of one push. Thread-safe. `hosts` has each host's report."""

    def __init__(self, nodes: Sequence[Node], progress: Progress) -> None:
        self.progress = progress
        self.hosts = {node: HostReport(node.name) for node in nodes}
        self.report = PushReport(list(self.hosts.values()))
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        self.progress.say(text)
        self.report.notices.append(text)

    def ready(self, node: Node) -> None:
        """Record that the host has its last missing part."""
        self.hosts[node].seconds = time.monotonic() - self._began

    def received(self, node: Node, part: str, count: int) -> None:
        """Count bytes that arrived on a host from anywhere. Local hosts cause no traffic."""
        self.progress.advance(node.name, part, count)
        if not node.host.is_local:
            with self._lock:
                self.hosts[node].received_bytes += count

    def sent(self, node: Node, count: int) -> None:
        """Count bytes that left this machine."""
        if not node.host.is_local:
            with self._lock:
                self.report.sent_bytes += count

    def finish(self) -> PushReport:
        self.report.seconds = time.monotonic() - self._began
        for host in self.report.hosts:
            host.seconds = host.seconds or self.report.seconds
        return self.report
