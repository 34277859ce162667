"""The result of a push by host: the document of `--json` and the summary line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..errors import DdpctlError, HostUnreachable, PushFailed
from ..ssh.node import Node

UNITS = ("B", "kB", "MB", "GB", "TB")


@dataclass
class HostReport:
    """One host. Layers and files that it already had count as skipped."""

    host: str
    received_bytes: int = 0
    image: str | None = None  # present, sent, updated or pulled; None if not requested
    dataset: str | None = None  # present or sent
    workdir: str | None = None
    layers_sent: int = 0
    layers_skipped: int = 0
    files_sent: int = 0
    files_skipped: int = 0
    seconds: float = 0.0
    error: str | None = None


@dataclass
class PushReport:
    """A push. sent_bytes: bytes that left this machine; relaying hosts received more."""

    hosts: list[HostReport]
    image_digest: str | None = None
    dataset_digest: str | None = None
    workdir_digest: str | None = None
    sent_bytes: int = 0
    seconds: float = 0.0
    notices: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        document = {"version": 1, "ok": not any(host.error for host in self.hosts), **asdict(self)}
        for timed in (document, *document["hosts"]):
            timed["seconds"] = round(timed["seconds"], 3)
        return document

    def summary(self) -> str:
        failed = sum(1 for host in self.hosts if host.error)
        received = sum(host.received_bytes for host in self.hosts)
        files = sum(host.files_sent for host in self.hosts)
        layers = sum(host.layers_sent for host in self.hosts)
        count = len(self.hosts)
        ready = f"{count - failed} of {count}" if failed else f"{count}"
        ready += " host" if count == 1 else " hosts"
        if not received:
            return f"{ready} ready in {self.seconds:.1f} s: nothing to send"
        return (
            f"{ready} ready in {self.seconds:.1f} s: {format_bytes(self.sent_bytes)} sent from here, "
            f"{format_bytes(received)} received ({layers} layers, {files} files)"
        )


class HostsNotReady(PushFailed):
    """Some hosts failed; the others are ready. The message has a line per failed host."""

    def __init__(self, failures: Mapping[Node, DdpctlError], report: PushReport) -> None:
        super().__init__("\n".join(dict.fromkeys(str(error) for error in failures.values())))
        self.failures = {node.name: error for node, error in failures.items()}
        self.report = report
        if all(isinstance(error, HostUnreachable) for error in failures.values()):
            self.exit_code = HostUnreachable.exit_code


def format_bytes(count: float) -> str:
    """Format bytes in powers of ten: 1.5 MB."""
    power = 0
    while abs(count) >= 1000 and power < len(UNITS) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.1f} {UNITS[power]}" if power else f"{count:.0f} B"
