"""Which failure was first, and why: all nodes' evidence in, one FirstFailure out. Pure.

Every node tells what it saw: ranks that ended, peers that went out of sight, torchrun's own words. Each
such observation is a suspect. Causes go before bystanders, bystanders before effects, and among
equals the earliest on a common clock is taken: a rank that ends because its peer has gone may well
be seen to end first.
"""

from __future__ import annotations

import datetime
import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from launcher import signs
from launcher.evidence import Evidence, NodeEvidence, full_disks, on_one_clock, oom_kills
from launcher.hang import hang

STOPPED_BY_US = ("SIGTERM", "SIGINT", "SIGHUP", "SIGKILL")


class Weight(enum.IntEnum):
    CAUSE = 0
    BYSTANDER = 1  # tells of somebody else's failure, or may be one
    OUT_OF_SIGHT = 2  # nobody can ask it, and others lost a connection to somebody
    EFFECT = 3


@dataclass(frozen=True)
class FirstFailure:
    """CONTRACT section 5. `time` is RFC 3339 on the launching machine's clock."""

    host: str
    node_rank: int
    rank: int | None
    local_rank: int | None
    exit_code: int | None
    signal: str | None
    kind: str
    time: str
    message: str
    excerpt: str
    remedy: str


@dataclass(frozen=True)
class Suspect:
    weight: Weight
    time: float  # unix seconds on the launching machine's clock
    node: NodeEvidence
    kind: str
    message: str
    rank: int | None = None
    local_rank: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    lines: Sequence[str] = ()
    remedy: str = ""


def first_failure(evidence: Evidence) -> FirstFailure | None:
    """None when nothing tells of a failure."""
    evidence = on_one_clock(evidence)
    found = [suspect for node in evidence.nodes for suspect in suspects(node, evidence)]
    if all(suspect.exit_code == 0 and suspect.weight for suspect in found):
        return None
    first = min(found, key=lambda suspect: (suspect.weight, suspect.time))
    return FirstFailure(
        host=first.node.host,
        node_rank=first.node.node_rank,
        rank=first.rank,
        local_rank=first.local_rank,
        exit_code=first.exit_code,
        signal=first.signal,
        kind=first.kind,
        time=_rfc3339(first.time),
        message=first.message,
        excerpt="\n".join(signs.excerpt(first.lines)),
        remedy=first.remedy,
    )


def headline(failure: FirstFailure) -> str:
    """One sentence: who was first, and what happened to it."""
    if failure.rank is None:
        return f"{failure.host} (node {failure.node_rank}): {failure.message}"
    where = f"{failure.host}, local_rank {failure.local_rank}"
    return f"rank {failure.rank} ({where}) {failure.message}"


def suspects(node: NodeEvidence, evidence: Evidence) -> Iterator[Suspect]:
    for time, event in node.of("rank_exit"):
        yield from _rank_exit(node, event.get("time") or time, event)
    for time, event in node.of("stopping"):
        yield from _reason(event.get("reason") or {}, time, node, evidence)
    yield from _torchrun(node)
    yield from _sudden_end(node, evidence)


# --- a rank that ended ---------------------------------------------------------------------------


def _rank_exit(node: NodeEvidence, time: float, event: dict[str, Any]) -> Iterator[Suspect]:
    code, signal = event.get("exit_code"), event.get("signal")
    if code == 0:
        if not event.get("stopping"):
            yield _finished_early(node, time, event)
        return
    traceback = str(event.get("traceback") or "").splitlines()
    lines = traceback or event.get("last_lines") or node.lines(event["rank"])
    kind, message, remedy = _what(code, signal, lines, event.get("message"))
    weight = Weight.CAUSE
    if _we_did_it(event) or signal == "SIGTERM" or signs.is_effect(lines):
        weight = Weight.EFFECT
    elif kind == "collective-timeout":
        weight = Weight.BYSTANDER
    if kind == "killed" and signal == "SIGKILL" and (node.oom_killed or oom_kills(node)):
        kind, message, remedy = _oom(node)
    if kind in ("exit-code", "killed") and weight == Weight.CAUSE and (full := full_disks(node)):
        kind, sign = ("shm-full" if full == ["shm"] else "disk-full"), signs.SIGNS
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
    kind, _, remedy = REASONS["early-exit"]
    return Suspect(
        Weight.BYSTANDER,
        time - node.clock_skew,
        node,
        kind,
        "exited with code 0 while other ranks still ran",
        rank=event["rank"],
        local_rank=event["local_rank"],
        exit_code=0,
        remedy=remedy,
    )


def _we_did_it(event: dict[str, Any]) -> bool:
    unseen = event.get("exit_code") is None  # torchrun takes its rank's code at once as it stops
    return bool(event.get("stopping")) and (unseen or event.get("signal") in STOPPED_BY_US)


def _what(
    code: int | None, signal: str | None, lines: Sequence[str], recorded: str | None
) -> tuple[str, str, str]:
    """(kind, message, remedy) of a rank that ended badly."""
    sign = signs.known_sign(lines)
    said = signs.exception_line(lines)
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


def _telling_line(sign: signs.Sign, lines: Sequence[str]) -> str:
    return next(line.strip() for line in reversed(lines) if sign.words.search(line))


def _oom(node: NodeEvidence) -> tuple[str, str, str]:
    limits = [event.get("memory_limit") for _, event in node.of("evidence")]
    limit = next((f" of {value / 2**30:.1f} GiB" for value in limits if value), "")
    return (
        "oom-killed",
        f"was killed by the kernel's OOM killer (SIGKILL): the memory{limit} was used up",
        "less memory: fewer DataLoader workers or a smaller batch; or a higher limit",
    )


# --- why a supervisor stopped its node -----------------------------------------------------------

REASONS = {  # supervisor's reason -> (kind, weight, remedy)
    "early-exit": (
        "early-exit",
        Weight.CAUSE,
        "every rank must do the same number of steps; a script that exits 0 after an error looks "
        "like this too",
    ),
    "stopped": (
        "stopped",
        Weight.CAUSE,
        "somebody stopped the process (SIGSTOP, Ctrl-Z, debugger)",
    ),
    "start": ("start", Weight.CAUSE, "the image must hold Python and torch"),
    "hung": (
        "hung",
        Weight.BYSTANDER,
        "see what that rank waits for: data, a lock, a disk; `ddpctl stacks` shows where the ranks of "
        "a living run stand",
    ),
    "never-joined": (
        "never-joined",
        Weight.BYSTANDER,
        "that host's container did not start or cannot reach node 0: see `ddpctl check`",
    ),
    "supervisor": ("supervisor", Weight.CAUSE, "this is a fault of ddpctl: please report it"),
    "control-port": ("port-in-use", Weight.CAUSE, "start again: another port is chosen"),
    "signal": ("terminated", Weight.BYSTANDER, "somebody stopped the container or its host"),
    "peer-lost": (
        "host-lost",
        Weight.BYSTANDER,
        "that host, its container or the network to it went away: see `ddpctl check`",
    ),
}


def _reason(
    reason: dict[str, Any], seen: float, node: NodeEvidence, evidence: Evidence
) -> Iterator[Suspect]:
    if reason.get("kind") not in REASONS:
        return
    kind, weight, remedy = REASONS[reason["kind"]]
    about = next((n for n in evidence.nodes if n.node_rank == reason.get("node_rank")), node)
    if reason["kind"] == "peer-lost" and about.end is not None and _blames(about, node):
        kind = "network-cut"
        remedy = "both hosts went on without hearing each other: look at the network between them"
    message, lines = str(reason.get("message", "")), reason.get("last_lines") or ()
    rank, local_rank = reason.get("rank"), reason.get("local_rank")
    if kind == "hung" and (found := hang(evidence, message.partition(";")[0])):
        lines = found.lines
        if found.rank and found.node:
            about, rank, local_rank = found.node, found.rank.rank, found.rank.local_rank
        if found.rank or rank is None:
            message = found.message
    yield Suspect(
        weight,
        seen - node.clock_skew,
        about,
        kind,
        message,
        rank=rank,
        local_rank=local_rank,
        exit_code=reason.get("exit_code"),
        signal=reason.get("signal"),
        lines=lines,
        remedy=remedy,
    )


def _blames(node: NodeEvidence, other: NodeEvidence) -> bool:
    """`node` too lost sight of its peers, so it was not dead: the network between them was."""
    reasons = [event.get("reason") or {} for _, event in node.of("stopping")]
    return any(
        reason.get("kind") == "peer-lost" and reason.get("node_rank") != node.node_rank
        for reason in reasons
    )


# --- torchrun itself, and nodes that ended without a word ------------------------------------------


def _torchrun(node: NodeEvidence) -> Iterator[Suspect]:
    """torchrun failed and none of its ranks did: arguments, ports, the image."""
    end = node.end or {}
    reason = end.get("reason") or {}
    if end.get("state") != "failed" or reason.get("kind") != "torchrun":
        return
    lines = reason.get("last_lines") or node.lines(None)
    kind, message, remedy = _what(end.get("exit_code"), reason.get("signal"), lines, None)
    kind = "torchrun" if kind in ("exception", "exit-code") else kind
    yield Suspect(
        Weight.EFFECT if signs.is_effect(lines) and kind != "port-in-use" else Weight.CAUSE,
        (reason.get("time") or node.last_seen) - node.clock_skew,
        node,
        kind,
        f"torchrun {message}",
        exit_code=end.get("exit_code"),
        lines=lines,
        remedy=remedy,
    )


def _sudden_end(node: NodeEvidence, evidence: Evidence) -> Iterator[Suspect]:
    """The container is gone and its supervisor had no time for a word."""
    if node.end is not None or node.of("stopping"):
        return
    time, weight = node.last_seen - node.clock_skew, Weight.CAUSE
    if node.oom_killed:
        kind, message, remedy = _oom(node)
    elif node.exit_code is not None:
        kind = "container-killed"
        message = f"its container was killed (exit code {node.exit_code})"
        remedy = "somebody, or the engine of that host, killed it"
    elif (seen := _lost_by_peers(node, evidence)) or not node.unseen:
        kind, message = "host-lost", f"the host is lost: {seen or 'its container is gone'}"
        remedy = "see that the host and its Docker Engine are up: `ddpctl check`"
    elif _connections_broke(node, evidence):
        weight, kind = Weight.OUT_OF_SIGHT, "host-lost"
        message = (
            f"the host is lost: others' connections broke, and it does not answer: {node.unseen}"
        )
        remedy = "see that the host is up and the network to it: `ddpctl check`"
    else:
        return  # only out of the launching machine's sight
    yield Suspect(weight, time, node, kind, message, exit_code=node.exit_code, remedy=remedy)


def _connections_broke(node: NodeEvidence, evidence: Evidence) -> bool:
    """Ranks of other nodes ended because somebody had gone."""
    return any(
        event.get("exit_code") and signs.is_effect(event.get("last_lines") or ())
        for other in evidence.nodes
        if other is not node
        for _, event in other.of("rank_exit")
    )


def _lost_by_peers(node: NodeEvidence, evidence: Evidence) -> str:
    """In which way they lost it, or ""."""
    reasons = [event.get("reason") or {} for n in evidence.nodes for _, event in n.of("stopping")]
    return next(
        (
            str(reason["message"])
            for reason in reasons
            if reason.get("kind") == "peer-lost" and reason.get("node_rank") == node.node_rank
        ),
        "",
    )


def _rfc3339(seconds: float) -> str:
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
