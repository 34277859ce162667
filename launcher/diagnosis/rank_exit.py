"""A rank that ended: what it died of, by its code, its signal and its last words. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from launcher.diagnosis import log_patterns
from launcher.diagnosis.evidence import NodeEvidence, full_disks, oom_kills
from launcher.diagnosis.suspect import Suspect, Weight

STOPPED_BY_US = ("SIGTERM", "SIGINT", "SIGHUP", "SIGKILL")
EARLY_EXIT = (
    "every rank must do the same number of steps; a script that exits 0 after an error looks "
    "like this too"
)


def rank_exit(node: NodeEvidence, time: float, event: dict[str, Any]) -> Iterator[Suspect]:
    code, signal = event.get("exit_code"), event.get("signal")
    if code == 0:
        if not event.get("stopping"):
            yield _finished_early(node, time, event)
        return
    traceback = str(event.get("traceback") or "").splitlines()
    lines = traceback or event.get("last_lines") or node.lines(event["rank"])
    kind, message, remedy = what_ended_it(code, signal, lines, event.get("message"))
    weight = Weight.CAUSE
    if _we_did_it(event) or signal == "SIGTERM" or log_patterns.is_effect(lines):
        weight = Weight.EFFECT
    elif kind == "collective-timeout":
        weight = Weight.BYSTANDER
    if kind == "killed" and signal == "SIGKILL" and (node.oom_killed or oom_kills(node)):
        kind, message, remedy = oom(node)
    if kind in ("exit-code", "killed") and weight == Weight.CAUSE and (full := full_disks(node)):
        kind, sign = ("shm-full" if full == ["shm"] else "disk-full"), log_patterns.SIGNS
        message = f"{message}; no room was left for {' and '.join(full)}"
        remedy = next(known.remedy for known in sign if known.kind == kind)
    if weight == Weight.EFFECT and kind == "exception":
        kind, remedy = "peer-gone", "look at the other hosts and the network between them"
    yield Suspect(
        weight,
        time - node.clock_skew,
        node,
        kind,
        message,
        rank=event["rank"],
        local_rank=event["local_rank"],
        exit_code=code,
        signal=signal,
        lines=lines,
        remedy=remedy,
    )


def _finished_early(node: NodeEvidence, time: float, event: dict[str, Any]) -> Suspect:
    """A good end, unless all that came after it are effects of its going."""
    return Suspect(
        Weight.BYSTANDER,
        time - node.clock_skew,
        node,
        "early-exit",
        "exited with code 0 while other ranks still ran",
        rank=event["rank"],
        local_rank=event["local_rank"],
        exit_code=0,
        remedy=EARLY_EXIT,
    )


def _we_did_it(event: dict[str, Any]) -> bool:
    unseen = event.get("exit_code") is None  # torchrun takes its rank's code at once as it stops
    return bool(event.get("stopping")) and (unseen or event.get("signal") in STOPPED_BY_US)


def what_ended_it(
    code: int | None, signal: str | None, lines: Sequence[str], recorded: str | None
) -> tuple[str, str, str]:
    """(kind, message, remedy) of a rank that ended badly."""
    sign = log_patterns.known_sign(lines)
    said = log_patterns.exception_line(lines)
    if signal and signal != "SIGABRT":
        kind = "segv" if signal in ("SIGSEGV", "SIGBUS") else "killed"
        remedy = {
            "SIGSEGV": "native code crashed: the excerpt shows where if Python could tell",
            "SIGBUS": "/dev/shm or the disk may be full: raise job.shm_size",
        }.get(signal, "somebody, or something on that host, sent the signal")
        if signal == "SIGBUS" or (sign and sign.kind == "shm-full"):
            kind = "shm-full"
        return kind, f"was killed by {signal}", remedy
    if said or recorded:
        message = f"raised {said or recorded}"
        return (sign.kind, message, sign.remedy) if sign else ("exception", message, "")
    message = f"was killed by {signal}" if signal else f"exited with code {code}"
    if code is None:
        message = "ended, and nobody saw with which code"
    if sign:
        return sign.kind, f"{message}: {_telling_line(sign, lines)}", sign.remedy
    return ("killed" if signal else "exit-code"), message, ""


def _telling_line(sign: log_patterns.Sign, lines: Sequence[str]) -> str:
    return next(line.strip() for line in reversed(lines) if sign.words.search(line))


def oom(node: NodeEvidence) -> tuple[str, str, str]:
    limits = [event.get("memory_limit") for _, event in node.of("evidence")]
    limit = next((f" of {value / 2**30:.1f} GiB" for value in limits if value), "")
    return (
        "oom-killed",
        f"was killed by the kernel's OOM killer (SIGKILL): the memory{limit} was used up",
        "less memory: fewer DataLoader workers or a smaller batch; or a higher limit",
    )
