"""Explain why a rank ended, from its exit code, its signal and its last lines. Pure."""

from collections.abc import Sequence

from ..supervisor.events import RankExit, ResourceUsage
from . import log_patterns
from .evidence import Candidate, NodeEvidence, Weight
from .failure_kinds import FailureKind

SIGNALS_OF_OURS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGKILL")


def rank_exit(node: NodeEvidence, time: float, exit: RankExit) -> Candidate | None:
    """Return the rank's failure, or None if the rank exited with 0 when it was asked to stop."""
    lines: Sequence[str] = ()
    if exit.exit_code != 0:
        lines = (
            (exit.traceback or "").splitlines()
            or [line for text in exit.last_lines for line in text.splitlines()]
            or node.lines(exit.rank)
        )
        weight, kind, message = _classify(node, exit, lines)
    elif exit.stopping:
        return None
    else:  # a success, unless all later failures are effects of it
        weight, kind = Weight.WITNESS, FailureKind.EARLY_EXIT
        message = "exited with code 0 while other ranks were still running"
    return Candidate(
        weight,
        time - node.clock_skew,
        node,
        kind,
        message,
        rank=exit.rank,
        local_rank=exit.local_rank,
        exit_code=exit.exit_code,
        signal=exit.signal,
        lines=lines,
    )


def _classify(
    node: NodeEvidence, exit: RankExit, lines: Sequence[str]
) -> tuple[Weight, FailureKind, str]:
    kind, message = classify_exit(exit.exit_code, exit.signal, lines, exit.message)
    if kind == FailureKind.KILLED and exit.signal == "SIGKILL" and node.oom_kills:
        kind, message = FailureKind.OOM_KILLED, oom_message(node)
    reaped = exit.exit_code is None  # torchrun reaps its ranks at once when it stops
    stopped_by_us = exit.stopping and (reaped or exit.signal in SIGNALS_OF_OURS)
    if stopped_by_us or exit.signal == "SIGTERM" or log_patterns.is_effect(lines):
        effect = FailureKind.PEER_GONE if kind == FailureKind.EXCEPTION else kind
        return Weight.EFFECT, effect, message
    if kind == FailureKind.COLLECTIVE_TIMEOUT:
        return Weight.WITNESS, kind, message
    if kind in (FailureKind.EXIT_CODE, FailureKind.KILLED) and (full := node.full_disks):
        kind = FailureKind.SHM_FULL if full == ["shm"] else FailureKind.DISK_FULL
        message = f"{message}; no space was left on {' and '.join(full)}"
    if reaped and kind == FailureKind.EXIT_CODE:
        return Weight.WITNESS, kind, message  # torchrun also reaps ranks that succeeded
    return Weight.CAUSE, kind, message


def classify_exit(
    code: int | None, signal: str | None, lines: Sequence[str], recorded: str | None = None
) -> tuple[FailureKind, str]:
    """Return (kind, message) of a failed process. recorded: the exception from torch's @record."""
    known = log_patterns.known_kind(lines)
    raised = log_patterns.exception_line(lines) or recorded
    if signal and signal != "SIGABRT":
        message = f"was killed by {signal}"
        if signal == "SIGBUS" or known == FailureKind.SHM_FULL:
            return FailureKind.SHM_FULL, message
        return (FailureKind.SEGV if signal == "SIGSEGV" else FailureKind.KILLED), message
    if raised:
        return known or FailureKind.EXCEPTION, f"raised {raised}"
    message = f"was killed by {signal}" if signal else f"exited with code {code}"
    if code is None:
        message = "exited with an unknown code"
    if known and known.pattern:
        line = next((line for line in reversed(lines) if known.pattern.search(line)), "")
        return known, f"{message}: {line.strip()}"
    return (FailureKind.KILLED if signal else FailureKind.EXIT_CODE), message


def oom_message(node: NodeEvidence) -> str:
    limits = [event.memory_limit for _, event in node.of(ResourceUsage)]
    limit = next((f" (limit: {value / 2**30:.1f} GiB)" for value in limits if value), "")
    return f"was killed by the kernel's OOM killer (SIGKILL): out of memory{limit}"
