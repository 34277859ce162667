"""What one push has done so far, for its report and its progress display."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from ..ssh.node import Node
from .progress import Progress
from .report import HostReport, PushReport


class Tracker:
    """Safe to use from many threads. `hosts` has the report of each host."""

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
        """The host has the last part that it lacked."""
        self.hosts[node].seconds = time.monotonic() - self._began

    def received(self, node: Node, part: str, count: int) -> None:
        """Bytes on a host, wherever they came from. A local host's go through a pipe: no traffic."""
        self.progress.advance(node.name, part, count)
        if not node.is_local:
            with self._lock:
                self.hosts[node].received_bytes += count

    def sent(self, node: Node, count: int) -> None:
        """Bytes that left this machine."""
        if not node.is_local:
            with self._lock:
                self.report.sent_bytes += count

    def finish(self) -> PushReport:
        self.report.seconds = time.monotonic() - self._began
        for host in self.report.hosts:
            host.seconds = host.seconds or self.report.seconds
        return self.report
