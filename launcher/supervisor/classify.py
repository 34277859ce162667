"""Classify how a process ended: the kind of failure, and whether it may have been the first. Pure.

The launcher's diagnosis and the supervisors both use this module, so that they name the same cause.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Sequence

from . import quoted_error
from .events import RankExit, Reason, ResourceUsage, signal_name
from .failure_kinds import meaning_of

LONGEST_MESSAGE = 1000  # characters
FULL = 65536  # free bytes at or below which a disk counts as full
SIGNALS_OF_OURS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGKILL")
# Signals caused by a process's own native code; all others come from outside
CRASHES = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP", "SIGSYS")
LIMITS = ("shm-full", "thread-limit")  # kinds that explain a crash if the output reveals one


class Weight(enum.IntEnum):
    """Decides which observation is the first failure: the lowest wins; if equal, the earliest."""

    CAUSE = 0
    WITNESS = 1  # reports another node's failure, or may be an effect of one
    UNREACHABLE = 2  # the host does not answer, and other nodes lost a connection
    EFFECT = 3
    TERMINATED = 4  # was stopped by its own torchrun or supervisor


# The weights of the reasons to stop that are kinds of failure. The other reasons (a failed
# rank, torchrun, `kill`) are handled separately.
WEIGHTS = {
    **dict.fromkeys(("early-exit", "stopped", "start", "supervisor"), Weight.CAUSE),
    **dict.fromkeys(("port-in-use", "time-limit"), Weight.CAUSE),
    **dict.fromkeys(("hung", "never-joined", "terminated", "host-lost"), Weight.WITNESS),
}


@dataclass(frozen=True)
class Ending:
    """How a process or a node ended. remedy: "" if the kind's own remedy applies."""

    weight: Weight
    kind: str
    message: str
    remedy: str = ""


def rank_ending(
    exit: RankExit, resources: Sequence[ResourceUsage], *, oom_killed: bool = False
) -> Ending | None:
    """Return how a rank ended, or None if it exited with code 0 when it was asked to stop.

    resources: samples from its node. oom_killed: whether the node's engine reported an OOM kill.
    """
    if exit.exit_code == 0:  # a success, unless every later failure is an effect of it
        message = "exited with code 0 while other ranks were still running"
        return None if exit.stopping else Ending(Weight.WITNESS, "early-exit", message)
    kind, message, remedy = describe(exit.exit_code, exit_lines(exit), exit.message)
    by_kernel = oom_killed or any(each.oom_kills for each in resources)
    if by_kernel and kind == "worker-killed":
        kind, message, remedy = "oom-killed", oom_message(resources, message), ""
    elif by_kernel and "SIGKILL" in (exit.signal, shell_signal(exit.exit_code)):
        kind, message = "oom-killed", oom_message(resources)
    reaped = exit.exit_code is None  # torchrun reaps its ranks at once when it stops
    stopped_by_us = exit.stopping and (reaped or exit.signal in SIGNALS_OF_OURS)
    if stopped_by_us or exit.signal == "SIGTERM":
        kind = "peer-gone" if kind == "exception" else kind
        return Ending(Weight.TERMINATED, kind, message, remedy)
    if kind == "peer-gone":
        return Ending(Weight.EFFECT, kind, message, remedy)
    if kind == "collective-timeout":
        return Ending(Weight.WITNESS, kind, message, remedy)
    if kind in ("exit-code", "killed") and (full := full_disks(resources)):
        kind = "shm-full" if full == ["shm"] else "disk-full"
        message = "%s; no space left in %s" % (message, ", ".join(full))
    if reaped and kind == "exit-code":
        return Ending(Weight.WITNESS, kind, message)  # torchrun also reaps ranks that succeeded
    return Ending(Weight.CAUSE, kind, message, remedy)


def stop_ending(reason: Reason) -> Ending | None:
    """Return how a node ended, from its reason to stop; None if a rank failed or `kill` stopped it.

    A failed rank has an event of its own, unless nobody saw its end.
    """
    if reason.kind == "torchrun":  # for example because of bad arguments or a taken port
        kind, message, remedy = describe(reason.exit_code, reason.last_lines)
        kind = "torchrun" if kind in ("exception", "exit-code") else kind
        weight = Weight.EFFECT if kind == "peer-gone" else Weight.CAUSE
        return Ending(weight, kind, "torchrun %s" % message, remedy)
    if reason.kind == "rank-failed" and reason.rank is None:
        return Ending(Weight.EFFECT, "exit-code", reason.message)
    if reason.kind not in WEIGHTS:
        return None
    supervisors_port = reason.kind == "port-in-use"
    remedy = "start again: ddpctl will choose another port" if supervisors_port else ""
    return Ending(WEIGHTS[reason.kind], reason.kind, reason.message, remedy)


def own_cause(
    reason: Reason,
    exits: Sequence[tuple[RankExit, Reason]],
    resources: Sequence[ResourceUsage],
) -> tuple[Weight, Reason] | None:
    """Return a node's failure that may have been the first; None if it only followed another node's.

    The Reason's kind is one of failure_kinds.txt. reason: why the node stopped. exits: the exits of
    its ranks, each with a Reason for that rank.
    """
    endings = [(stop_ending(reason), reason)]
    endings += [(rank_ending(exit, resources), rank) for exit, rank in exits]
    causes = [
        (e.weight, replace(r, kind=e.kind, message=e.message[:LONGEST_MESSAGE], last_lines=()))
        for e, r in endings
        if e
    ]
    return min(causes, key=lambda cause: (cause[0], cause[1].time), default=None)


def describe(
    code: int | None, lines: Sequence[str], recorded: str | None = None
) -> tuple[str, str, str]:
    """Return (kind, message, remedy) for a failed process.

    recorded: the exception that torch's @record saved. remedy: "" if the kind's own remedy applies.
    """
    printed, remedy, text = meaning_of(quoted_error.telling_texts(lines))
    kind, error = printed, quoted_error.error_line(lines) or recorded
    message = ended(code)
    signal = signal_name(code) or shell_signal(code)
    if signal == "SIGABRT":
        kind = kind or ("exception" if error and not quoted_error.is_thrown(lines) else "segv")
    elif signal in CRASHES:
        error = None
        if kind not in LIMITS:
            kind, remedy = ("shm-full" if signal == "SIGBUS" else "segv"), ""
    elif signal:
        return "killed", message, ""
    if error:
        return kind or "exception", "raised %s" % error, remedy
    if kind and kind == printed:
        message = "%s: %s" % (message, text)
    return kind or "exit-code", message, remedy


def ended(code: int | None) -> str:
    if code is None:
        return "exited with an unknown code"
    signal = signal_name(code)
    return "was killed by %s" % signal if signal else "exited with code %d" % code


def shell_signal(code: int | None) -> str | None:
    """Return the crash signal (or SIGKILL) that a shell reported as 128 + its number, or None."""
    name = signal_name(128 - code) if code is not None and code > 128 else None
    return name if name in (*CRASHES, "SIGKILL") else None


def exit_lines(exit: RankExit) -> list[str]:
    """Return the recorded traceback of a failed rank, or its last lines if there is none."""
    recorded = (exit.traceback or "").splitlines()
    return recorded or [line for text in exit.last_lines for line in text.splitlines()]


def full_disks(resources: Sequence[ResourceUsage]) -> list[str]:
    """Return the names of the disks that were full at the time of the failure."""
    free = resources[0].free if resources else {}
    return [name for name, left in free.items() if left is not None and left < FULL]


def oom_message(resources: Sequence[ResourceUsage], error: str = "") -> str:
    """Describe an OOM kill.

    error: how the rank ended, if only one of its processes was killed, not the rank itself.
    """
    limits = [each.memory_limit for each in resources]
    limit = next((" (limit: %.1f GiB)" % (value / 2**30) for value in limits if value), "")
    killed = "was killed by the kernel's OOM killer (SIGKILL): out of memory%s" % limit
    return "%s: one of its processes %s" % (error, killed) if error else killed
