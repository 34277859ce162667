"""Sending a parcel: a stream of bytes that a command on each host reads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from launcher.errors import DdpctlError, PushFailed
from launcher.push.progress import Progress
from launcher.push.report import HostReport, PushReport
from launcher.ssh.many import try_each
from launcher.ssh.node import Node
from launcher.ssh.stream import Stream

T = TypeVar("T")
END_TIMEOUT = 600.0  # seconds for a disk or an engine to work off what it was given


@dataclass(frozen=True)
class Parcel:
    """`chunks()` gives the same bytes from their beginning each time that it is called."""

    what: str  # image, dataset, workdir
    argv: tuple[str, ...]  # reads the parcel from its standard input
    size: int  # bytes
    chunks: Callable[[], Iterator[bytes]]
    finish: Callable[[Node], None] | None = None  # for each host, as soon as it has all of it


@dataclass
class Journey:
    """What all parts of one push share: who gets what, what is told, what is counted."""

    progress: Progress
    report: PushReport
    hosts: dict[Node, HostReport]
    began: float = field(default_factory=time.monotonic)
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def say(self, text: str) -> None:
        self.progress.say(text)
        self.report.notices.append(text)

    def ready(self, node: Node) -> None:
        """What that host was to get last, it has."""
        self.hosts[node].seconds = time.monotonic() - self.began

    def count(self, node: Node, parcel: Parcel, count: int, *, from_here: bool) -> None:
        """A `local` host's bytes go through a pipe: nothing leaves this machine."""
        self.progress.advance(node.name, parcel.what, count)
        if not node.host.is_local:
            with self._counting:
                self.hosts[node].received += count
                self.report.sent += count if from_here else 0

    def count_sent(self, count: int) -> None:
        """What one host was given for itself and for others."""
        with self._counting:
            self.report.sent += count


def send_directly(
    parcel: Parcel, nodes: Sequence[Node], journey: Journey
) -> dict[Node, DdpctlError]:
    """To all at once, each from this machine. Gives the hosts that failed and why."""
    return try_each(nodes, lambda node: _send(parcel, node, journey))[1]


def _send(parcel: Parcel, node: Node, journey: Journey) -> None:
    journey.progress.begin(node.name, parcel.what, parcel.size)
    stream = node.open(parcel.argv)
    try:
        for chunk in parcel.chunks():
            stream.write(chunk)
            journey.count(node, parcel, len(chunk), from_here=True)
        stream.close_stdin()
        while stream.read():
            pass
        code = stream.wait(END_TIMEOUT)
        if code != 0:
            raise refused(node.name, parcel.what, stream.stderr_tail(), code)
        if parcel.finish is not None:
            parcel.finish(node)
    except (BrokenPipeError, TimeoutError) as error:
        raise refused(node.name, parcel.what, _last_words(stream) or str(error)) from None
    finally:
        stream.close()
        journey.progress.end(node.name, parcel.what)


def _last_words(stream: Stream) -> str:
    """What a command that stopped reading said about it."""
    try:
        stream.wait(5.0)
    except (TimeoutError, DdpctlError):
        pass
    return stream.stderr_all(1.0).decode(errors="replace").strip()


def refused(host: str, what: str, said: str, code: int | None = None) -> PushFailed:
    """One line: which host, what it said, what to do about it."""
    lines = [line for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if "exiting now" not in line.lower()]
    text = (telling or lines or [f"exit {code}"])[-1].strip()
    for sign, remedy in REMEDIES.items():
        found = next((line for line in lines if sign.lower() in line.lower()), None)
        if found is not None:
            return PushFailed(f"{host}: {what}: {found.strip()}; {remedy}")
    return PushFailed(f"{host}: {what}: {text}")


REMEDIES = {
    "no space left": "free space on that host's disk, then push again",
    "quota exceeded": "free space within the user's quota there, then push again",
    "permission denied": "give the SSH user the right to write there, then push again",
    "read-only file system": "the SSH user's home must be writable there",
    "file name too long": "shorten the name, or leave it out (.ddpctlignore)",
}
