"""The report of a push: what each host received, and which hosts are not ready."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from rich.filesize import decimal

from ..errors import DdpctlError, HostUnreachable, NodesFailed, lines
from ..outcomes import Exit
from ..ssh.host_connection import HostConnection
from ..ssh.many import by_name
from ..terminal.console import Console
from ..text import counted
from .files.left_out import LeftOut


@dataclass
class HostReport:
    """The report on one host. Layers and files that the host already had count as skipped."""

    host: str
    received_bytes: int = 0
    image: str | None = None  # present, sent, updated or pulled; None if not needed or failed
    dataset: str | None = None  # present or sent; None if not needed or failed
    workdir: str | None = None
    layers_sent: int = 0
    layers_skipped: int = 0
    files_sent: int = 0
    files_skipped: int = 0
    seconds: float = 0.0
    error: str | None = None


@dataclass
class PushReport:
    """The report on a whole push. sent_bytes: what this machine sent, not what hosts passed on."""

    hosts: list[HostReport]
    image_digest: str | None = None
    dataset_digest: str | None = None
    workdir_digest: str | None = None
    sent_bytes: int = 0
    seconds: float = 0.0
    notices: list[str] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    ok: bool = True  # whether all hosts are ready; spares need not be

    def document(self) -> dict[str, Any]:
        document = {"version": 1, **asdict(self)}
        for each in document["left_out"]:
            each["bytes"] = each.pop("size")
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
            f"({counted(layers, 'layer')}, {counted(files, 'file')})"
        )
        return (
            f"{ready}{counted(len(self.hosts), 'host')} ready in {self.seconds:.1f} s: "
            f"{sent if received or layers or files else 'nothing sent' if failed else 'nothing to send'}"
        )


class HostsResult(Protocol):
    """What a command did on each host. It can be reported even if some hosts failed."""

    def document(self) -> dict[str, Any]: ...
    def summary(self) -> str: ...


class HostsNotReady(NodesFailed):
    """Raised if the push to some hosts failed. The other hosts are ready."""

    def __init__(self, failures: Mapping[HostConnection, DdpctlError], report: HostsResult) -> None:
        super().__init__(by_name([*failures], failures))
        self.report = report
        if not all(isinstance(error, HostUnreachable) for error in failures.values()):
            self.exit_code = Exit.PUSH


def without_spares(
    failures: Mapping[HostConnection, DdpctlError],
    spares: Collection[HostConnection],
    console: Console,
) -> dict[HostConnection, DdpctlError]:
    """Return the failures of hosts that are not spares. Print those of spares as warnings."""
    for line in lines(failures[connection] for connection in spares if connection in failures):
        console.say(f"warning: spare {line}")
    return {each: error for each, error in failures.items() if each not in spares}
