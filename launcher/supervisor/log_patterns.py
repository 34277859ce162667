"""Read a failed process's last lines: its exception, an excerpt, and whether it failed first. Pure."""

from __future__ import annotations

import re
from typing import Sequence

EXCERPT_LINES = 20

RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")  # torch's own excepthook prefixes each line
TRACEBACK = re.compile(r"^Traceback \(most recent call last\):")
NOISE = re.compile(
    r"^(\[?[WIE]\d{4} \d\d:\d\d|\[rank\d+\]:\[|frame #|Exception raised from"
    r"|terminate called|Fatal Python error|$)"
)
FRAME = re.compile(r"^frame #\d+: ")  # of a C++ stack, too long to quote
# A rank that prints one of these lost its connection to another rank, which failed first.
EFFECT = re.compile(
    r"connection closed by peer|connection reset by peer|broken ?pipe|connection refused"
    r"|remote process exited or there was a network error|ncclRemoteError"
    r"|nccl communicator (was|is) aborted|process group.*(aborted|destroyed)"
    r"|failed to recv, got 0 bytes|recvValue failed|sendBytes failed|recvVector failed"
    r"|DistNetworkError|DistStoreError|Socket Timeout|socket (has )?timed out"
    r"|application timeout caused pair closure|RendezvousConnectionError|RendezvousTimeoutError"
    r"|RendezvousClosedError|SignalException|connectFullMesh failed|no route to host",
    re.IGNORECASE,
)


def is_effect(lines: Sequence[str]) -> bool:
    """Return whether the process failed only because another one had already ended."""
    return bool(EFFECT.search("\n".join(telling_lines(lines))))


def telling_lines(lines: Sequence[str]) -> list[str]:
    """Return the lines that tell the cause: the exception's message or, without one, the last lines."""
    return exception_lines(lines) or _last_lines(lines)


def exception_line(lines: Sequence[str]) -> str:
    """Return the exception, such as `ValueError: boom`, or "". Names the DataLoader worker, if any."""
    found = exception_lines(lines)
    if found and ": Caught " in found[0] and len(found) > 1:
        return f"{found[-1]} ({found[0].partition(' in ')[2].rstrip('.')})"
    return found[0] if found else ""


def exception_lines(lines: Sequence[str]) -> list[str]:
    """Return all lines of the exception's message, such as `ValueError: boom`; [] without one."""
    block = _last_traceback(lines)
    for index, line in enumerate(block):
        if index and line and not line.startswith((" ", "\t")):
            return _without_noise(block[index:])
    return []


def excerpt(lines: Sequence[str]) -> list[str]:
    """Return the lines to quote: the last traceback, else the last lines."""
    block = _without_noise(_last_traceback(lines))
    if len(block) > EXCERPT_LINES:  # keep both ends: the entry point and the message
        half = EXCERPT_LINES // 2
        block = [*block[:half], f"... {len(block) - EXCERPT_LINES} lines ...", *block[-half:]]
    return block or _last_lines(lines)


def _unprefixed(lines: Sequence[str]) -> list[str]:
    return [RANK_PREFIX.sub("", line) for line in lines]


def _last_lines(lines: Sequence[str]) -> list[str]:
    return [line for line in _unprefixed(lines) if not FRAME.match(line)][-EXCERPT_LINES:]


def _last_traceback(lines: Sequence[str]) -> list[str]:
    clean = _unprefixed(lines)
    starts = [index for index, line in enumerate(clean) if TRACEBACK.match(line)]
    return clean[starts[-1] :] if starts else []


def _without_noise(block: Sequence[str]) -> list[str]:
    """Cut the block at the first empty line, log line or C++ frame."""
    end = next((i for i, line in enumerate(block) if i and NOISE.match(line)), len(block))
    return list(block[:end])
