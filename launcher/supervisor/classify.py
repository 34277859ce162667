"""Classify how a process ended: the kind of failure, and whether it may have been the first. Pure.

The launcher's diagnosis and the supervisors both use this, so both name the same cause. The kinds
and their log patterns are rows of the launcher's table (launcher/diagnosis/failure_kinds.py).
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Sequence

from . import log_patterns
from .events import RankExit, ResourceUsage

FULL = 65536  # free bytes at or below which a disk counts as full
SIGNALS_OF_OURS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGKILL")


class Restart(enum.Enum):
    """Whether a restart can help after a failure of some kind."""

    NEVER = "no"
    ONCE = "once"
    ALWAYS = "yes"


class KindTable:
    """The kinds of failure: (kind, value of Restart, log pattern or None). The first match wins."""

    def __init__(self, rows: Sequence[Sequence[str | None]]) -> None:
        flags = re.IGNORECASE | re.MULTILINE
        self._restarts = {kind: Restart(restart) for kind, restart, _ in rows}
        self._patterns = [(str(k), re.compile(text, flags)) for k, _, text in rows if text]

    def restart(self, kind: str) -> Restart:
        return self._restarts.get(kind, Restart.NEVER)

    def match(self, lines: Sequence[str]) -> tuple[str, re.Pattern[str]] | None:
        """Return the first kind whose pattern occurs in the lines, and the pattern."""
        text = "\n".join(lines)
        return next((row for row in self._patterns if row[1].search(text)), None)


class Weight(enum.IntEnum):
    """Rank of an observation as the first failure: the lowest wins, among equals the earliest."""

    CAUSE = 0
    WITNESS = 1  # reports another node's failure, or may be its effect
    UNREACHABLE = 2  # the host does not answer, and other nodes lost a connection
    EFFECT = 3


@dataclass(frozen=True)
class Ending:
    """How a process ended: as a candidate for the first failure."""

    weight: Weight
    kind: str
    message: str


def rank_ending(
    exit: RankExit,
    lines: Sequence[str],
    resources: Sequence[ResourceUsage],
    table: KindTable,
    *,
    oom_killed: bool = False,
) -> Ending | None:
    """Classify a rank's exit. Return None if it exited with 0 when it was asked to stop.

    lines: its last ones. resources: those of its node. oom_killed: reported by the node's engine.
    """
    if exit.exit_code == 0:  # a success, unless all later failures are effects of it
        message = "exited with code 0 while other ranks were still running"
        return None if exit.stopping else Ending(Weight.WITNESS, "early-exit", message)
    kind, message = describe(exit.exit_code, exit.signal, lines, table, exit.message)
    oom_killed = oom_killed or any(each.oom_kills for each in resources)
    if kind == "killed" and exit.signal == "SIGKILL" and oom_killed:
        kind, message = "oom-killed", oom_message(resources)
    reaped = exit.exit_code is None  # torchrun reaps its ranks at once when it stops
    stopped_by_us = exit.stopping and (reaped or exit.signal in SIGNALS_OF_OURS)
    if stopped_by_us or exit.signal == "SIGTERM" or log_patterns.is_effect(lines):
        return Ending(Weight.EFFECT, "peer-gone" if kind == "exception" else kind, message)
    if kind == "collective-timeout":
        return Ending(Weight.WITNESS, kind, message)
    if kind in ("exit-code", "killed") and (full := full_disks(resources)):
        kind = "shm-full" if full == ["shm"] else "disk-full"
        message = "%s; no space was left on %s" % (message, " and ".join(full))
    if reaped and kind == "exit-code":
        return Ending(Weight.WITNESS, kind, message)  # torchrun also reaps ranks that succeeded
    return Ending(Weight.CAUSE, kind, message)


def torchrun_ending(
    code: int | None, signal: str | None, lines: Sequence[str], table: KindTable
) -> Ending:
    """Classify a failure of torchrun itself: its arguments, a port, the image."""
    kind, message = describe(code, signal, lines, table)
    effect = log_patterns.is_effect(lines) and kind != "port-in-use"
    if kind in ("exception", "exit-code"):
        kind = "torchrun"
    return Ending(Weight.EFFECT if effect else Weight.CAUSE, kind, "torchrun %s" % message)


def describe(
    code: int | None,
    signal: str | None,
    lines: Sequence[str],
    table: KindTable,
    recorded: str | None = None,
) -> tuple[str, str]:
    """Return (kind, message) of a failed process. recorded: the exception from torch's @record."""
    known, pattern = table.match(log_patterns.telling_lines(lines)) or (None, None)
    raised = log_patterns.exception_line(lines) or recorded
    if signal and signal != "SIGABRT":
        message = "was killed by %s" % signal
        if signal == "SIGBUS" or known == "shm-full":
            return "shm-full", message
        return ("segv" if signal == "SIGSEGV" else "killed"), message
    if raised:
        return known or "exception", "raised %s" % raised
    message = "was killed by %s" % signal if signal else "exited with code %s" % code
    if code is None:
        message = "exited with an unknown code"
    if known and pattern:
        line = next((line for line in reversed(lines) if pattern.search(line)), "")
        return known, "%s: %s" % (message, line.strip())
    return ("killed" if signal else "exit-code"), message


def full_disks(resources: Sequence[ResourceUsage]) -> list[str]:
    """Return the disks that were full at the time of the failure."""
    free = resources[0].free if resources else {}
    return [name for name, left in free.items() if left is not None and left < FULL]


def oom_message(resources: Sequence[ResourceUsage]) -> str:
    limits = [each.memory_limit for each in resources]
    limit = next((" (limit: %.1f GiB)" % (value / 2**30) for value in limits if value), "")
    return "was killed by the kernel's OOM killer (SIGKILL): out of memory%s" % limit
