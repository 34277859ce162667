"""Sending a payload from this machine straight to a command on each host."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ...errors import DdpctlError, PushFailed
from ...ssh.many import try_each
from ...ssh.node import Node
from ...ssh.stream import Stream
from ..tracker import Tracker

END_TIMEOUT = 600.0  # seconds for a disk or an engine to process what it has received

REMEDIES = {
    "no space left": "free space on that host's disk, then push again",
    "quota exceeded": "free space within the user's quota there, then push again",
    "permission denied": "give the SSH user write permission there, then push again",
    "read-only file system": "make the SSH user's home writable there",
    "file name too long": "shorten the name, or leave the file out (.ddpctlignore)",
}


@dataclass(frozen=True)
class Payload:
    """A stream of bytes for a command on each host. `chunks()` yields it from its first byte."""

    part: str  # image, dataset, workdir
    command: Callable[[Node], tuple[str, ...]]  # there; it reads the payload from standard input
    size: int  # bytes, about
    chunks: Callable[[], Iterator[bytes]]
    finish: Callable[[Node], None] | None = None  # called for each host that has all of it


def send_directly(
    payload: Payload, nodes: Sequence[Node], tracker: Tracker
) -> dict[Node, DdpctlError]:
    """To all hosts at once. Returns the hosts that failed, with the reason."""
    return try_each(nodes, lambda node: _send(payload, node, tracker))[1]


def _send(payload: Payload, node: Node, tracker: Tracker) -> None:
    tracker.progress.begin(node.name, payload.part, payload.size)
    stream = node.open(payload.command(node))
    try:
        for chunk in payload.chunks():
            stream.write(chunk)
            tracker.received(node, payload.part, len(chunk))
            tracker.sent(node, len(chunk))
        stream.close_stdin()
        while stream.read():
            pass
        code = stream.wait(END_TIMEOUT)
        if code != 0:
            raise failed(node.name, payload.part, stream.stderr_tail() or f"exit {code}")
        if payload.finish is not None:
            payload.finish(node)
    except OSError as error:  # the command stopped reading, or stopped answering
        raise failed(node.name, payload.part, _stderr(stream) or str(error)) from None
    finally:
        stream.close()
        tracker.progress.end(node.name, payload.part)


def _stderr(stream: Stream) -> str:
    """What a command that stopped reading printed about it."""
    with contextlib.suppress(TimeoutError, DdpctlError):
        stream.wait(5.0)
    return stream.stderr_all(1.0).decode(errors="replace").strip()


def failed(host: str, part: str, stderr: str) -> PushFailed:
    """One line: the host, the line of a command's stderr that explains most, and the remedy."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    lines = lines or ["failed without a message"]
    for symptom, remedy in REMEDIES.items():
        for line in lines:
            if symptom in line.lower():
                return PushFailed(f"{host}: {part}: {line}; {remedy}")
    telling = [line for line in lines if "exiting now" not in line.lower()]
    return PushFailed(f"{host}: {part}: {(telling or lines)[-1]}")
