"""What a push did, host by host: the document that `--json` prints and the summary line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from launcher.errors import DdpctlError, HostUnreachable, PushFailed

UNITS = ("B", "kB", "MB", "GB", "TB")


@dataclass
class HostReport:
    """One host. `received` is in bytes; layers and files that were there already are skipped."""

    host: str
    received: int = 0
    image: str = ""  # present, sent, updated or pulled; "" when no image was asked for
    dataset: str = ""  # present or sent
    workdir: str = ""
    layers_sent: int = 0
    layers_skipped: int = 0
    files_sent: int = 0
    files_skipped: int = 0
    seconds: float = 0.0
    error: str | None = None


@dataclass
class PushReport:
    """`sent` is what left this machine, in bytes: with relays less than what the hosts received."""

    hosts: list[HostReport]
    image_digest: str | None = None
    dataset_digest: str | None = None
    workdir_digest: str | None = None
    sent: int = 0
    seconds: float = 0.0
    notices: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        return {
            "version": 1,
            "ok": not any(host.error for host in self.hosts),
            "image_digest": self.image_digest,
            "dataset_digest": self.dataset_digest,
            "workdir_digest": self.workdir_digest,
            "sent_bytes": self.sent,
            "seconds": round(self.seconds, 3),
            "notices": self.notices,
            "hosts": [
                {
                    "host": host.host,
                    "received_bytes": host.received,
                    "image": host.image or None,
                    "dataset": host.dataset or None,
                    "workdir": host.workdir or None,
                    "layers_sent": host.layers_sent,
                    "layers_skipped": host.layers_skipped,
                    "files_sent": host.files_sent,
                    "files_skipped": host.files_skipped,
                    "seconds": round(host.seconds, 3),
                    "error": host.error,
                }
                for host in self.hosts
            ],
        }

    def summary(self) -> str:
        failed = sum(1 for host in self.hosts if host.error)
        received = sum(host.received for host in self.hosts)
        files = sum(host.files_sent for host in self.hosts)
        layers = sum(host.layers_sent for host in self.hosts)
        count = len(self.hosts)
        ready = f"{count - failed} of {count}" if failed else f"{count}"
        ready += " host" if count == 1 else " hosts"
        if not received:
            return f"{ready} ready in {self.seconds:.1f} s: nothing had to be sent"
        return (
            f"{ready} ready in {self.seconds:.1f} s: {in_words(self.sent)} sent from here, "
            f"{in_words(received)} received ({layers} layers, {files} files)"
        )


class HostsNotReady(PushFailed):
    """Some hosts failed; the others are ready. The message has a line for each failed host."""

    def __init__(self, failures: dict[str, DdpctlError], report: PushReport) -> None:
        super().__init__("\n".join(dict.fromkeys(str(error) for error in failures.values())))
        self.failures = failures
        self.report = report
        if all(isinstance(error, HostUnreachable) for error in failures.values()):
            self.exit_code = HostUnreachable.exit_code


def in_words(count: float) -> str:
    """Bytes as people read them, powers of ten."""
    power = 0
    while abs(count) >= 1000 and power < len(UNITS) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.1f} {UNITS[power]}" if power else f"{count:.0f} B"
