"""The result of a push by host: the document of `--json` and the summary line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.filesize import decimal

from ..errors import DdpctlError, HostUnreachable, PushFailed
from ..hosts.fold import counted
from ..ssh.node import Node


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
        ready = f"{len(self.hosts) - failed} of " if failed else ""
        sent = (
            f"{decimal(self.sent_bytes)} sent from here, {decimal(received)} received "
            f"({layers} layers, {files} files)"
        )
        return (
            f"{ready}{counted(len(self.hosts), 'host')} ready in {self.seconds:.1f} s: "
            f"{sent if received else 'nothing to send'}"
        )


class HostsNotReady(PushFailed):
    """Some hosts failed; the others are ready. The message has a line per failed host."""

    def __init__(self, failures: Mapping[Node, DdpctlError], report: PushReport) -> None:
        super().__init__("\n".join(dict.fromkeys(str(error) for error in failures.values())))
        self.failures = {node.name: error for node, error in failures.items()}
        self.report = report
        if all(isinstance(error, HostUnreachable) for error in failures.values()):
            self.exit_code = HostUnreachable.exit_code
