"""The progress of a push: counters, and progress bars or plain lines on stderr."""

import os
import sys
import threading
import time
from collections.abc import Sequence

import rich.progress
from rich.console import Console as RichConsole
from rich.filesize import decimal

from ..ssh.host_connection import HostConnection
from ..terminal.console import Console
from ..text import printable
from .push_report import HostReport, PushReport

INTERVAL = 10.0  # seconds between plain lines about one host


class PushProgress:
    """Keeps the report, and shows a row for each host and part (image, dataset or workdir).

    On a terminal, each row is a progress bar. Elsewhere, a plain line is printed for each row every
    ten seconds and at the end. `hosts`: the report on each host. Thread-safe.
    """

    def __init__(self, connections: Sequence[HostConnection], console: Console) -> None:
        self.hosts = {connection: HostReport(connection.name) for connection in connections}
        self.report = PushReport(list(self.hosts.values()))
        self._console = console
        lines = console.quiet or console.plain or os.environ.get("TERM") == "dumb"
        self._counts = (
            rich.progress.DownloadColumn(),
            rich.progress.TransferSpeedColumn(),
            rich.progress.TimeRemainingColumn(),
        )
        self._bars = rich.progress.Progress(  # visible only during a transfer
            rich.progress.SpinnerColumn(),
            rich.progress.TextColumn("{task.description}", markup=False),
            rich.progress.BarColumn(),
            *self._counts,
            rich.progress.TextColumn("{task.fields[doing]}", markup=False),
            console=RichConsole(stderr=True, soft_wrap=True),
            transient=True,
            disable=lines or not sys.stderr.isatty(),
        )
        self._rows: dict[tuple[HostConnection, str], rich.progress.Task] = {}
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def close(self) -> PushReport:
        """Stop the bars and return the report."""
        if not self._bars.disable:
            self._bars.stop()
        self.report.seconds = self._seconds()
        for host in self.report.hosts:
            host.seconds = host.seconds or self.report.seconds
        return self.report

    def say(self, text: str) -> None:
        """Print a notice and add it to the report, unless the report already has it."""
        if text in self.report.notices:
            return
        self.report.notices.append(text)
        if self._bars.disable:
            self._console.say(text)
        else:
            self._bars.console.print(f"ddpctl: {printable(text)}", markup=False, highlight=False)

    def begin(self, part: str, connections: Sequence[HostConnection], total: int | None) -> None:
        """Start or restart the rows of a part. total: bytes for each host; None if unknown."""
        with self._lock:
            self._bars.start()
            for connection in connections:
                if earlier := self._rows.get((connection, part)):
                    self._bars.remove_task(earlier.id)
                title, now = f"{connection.name} {part}", self._seconds()
                self._bars.add_task(title, total=total, doing="", line_at=now)
                self._rows[connection, part] = self._bars.tasks[-1]

    def update(self, part: str, *, total: int | None = None, doing: str | None = None) -> None:
        """Update a part's rows. total: bytes per host, once known. doing: what this machine is doing."""
        with self._lock:
            rows = [r for (_, name), r in self._rows.items() if name == part and not r.finished]
            for row in rows:
                self._bars.update(row.id, total=total)
                row.fields["doing"] = row.fields["doing"] if doing is None else doing
            due = bool(doing) and self._is_due(rows)
        if due:
            self._console.say(f"{part}: {doing}")

    def received(self, connection: HostConnection, part: str, count: int) -> None:
        """Count bytes that arrived on a host. The report omits bytes that arrived on local hosts."""
        with self._lock:
            row = self._rows[connection, part]
            self._bars.advance(row.id, count)
            if row.finished:
                row.fields["doing"] = "unpacking"
            if not connection.host.is_local:
                self.hosts[connection].received_bytes += count
            due = self._is_due([row])
        if due:
            size, speed, left = (str(column.render(row)) for column in self._counts)
            known = [size.replace("/?", ""), speed if speed != "?" else ""]
            known.append(f"{left} left" if row.total and "-" not in left else "")
            self._console.say(f"{connection.name}: {part}: {', '.join(filter(None, known))}")

    def sent(self, connection: HostConnection, count: int) -> None:
        """Count bytes that this machine sent to a host, unless the host is this machine itself."""
        if not connection.host.is_local:
            with self._lock:
                self.report.sent_bytes += count

    def settled(self, connection: HostConnection, part: str) -> None:
        """Record when a host finished processing the data that it received."""
        with self._lock:
            self._bars.stop_task(self._rows[connection, part].id)
            self.hosts[connection].seconds = self._seconds()

    def end(self, part: str, connections: Sequence[HostConnection]) -> None:
        """Mark a part's rows as complete for hosts that have received all of it."""
        for connection in connections:
            with self._lock:
                row = self._rows[connection, part]
                done = int(row.completed)
                seconds = max(row.elapsed or 0.0, 1e-3)
                self._bars.update(row.id, total=max(done, 1), completed=max(done, 1), doing="")
            if self._bars.disable and done:
                what = f"{decimal(done)} in {seconds:.1f} s ({decimal(int(done / seconds))}/s)"
                self._console.say(f"{connection.name}: {part}: {what}")

    def _is_due(self, rows: Sequence[rich.progress.Task]) -> bool:
        """Return whether a plain line about these rows is due. If so, restart their interval."""
        now = self._seconds()
        due = self._bars.disable and all(now - row.fields["line_at"] > INTERVAL for row in rows)
        for row in rows if due else ():
            row.fields["line_at"] = now
        return due

    def _seconds(self) -> float:
        return time.monotonic() - self._began
