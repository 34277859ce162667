"""Which failure was first, and why: all nodes' evidence in, one FirstFailure out. Pure.

Every node tells what it saw: ranks that ended, peers that went out of sight, torchrun's own words. Each
such observation is a suspect. Causes go before bystanders, bystanders before effects, and among
equals the earliest on a common clock is taken: a rank that ends because its peer has gone may well
be seen to end first.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass

from launcher.diagnosis import log_patterns
from launcher.diagnosis.evidence import Evidence, NodeEvidence, on_one_clock
from launcher.diagnosis.rank_exit import oom, rank_exit, what_ended_it
from launcher.diagnosis.stop_reason import reason_given
from launcher.diagnosis.suspect import Suspect, Weight
from launcher.diagnosis.torchrun_summary import root_cause


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
        excerpt="\n".join(log_patterns.excerpt(first.lines)),
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
        yield from rank_exit(node, event.get("time") or time, event)
    for time, event in node.of("stopping"):
        yield from reason_given(event.get("reason") or {}, time, node, evidence)
    yield from _torchrun(node)
    yield from _sudden_end(node, evidence)


# --- torchrun itself, and nodes that ended without a word ------------------------------------------


def _torchrun(node: NodeEvidence) -> Iterator[Suspect]:
    """torchrun failed and none of its ranks was seen to: arguments, ports, the image, or a rank that
    was gone too soon."""
    end = node.end or {}
    reason = end.get("reason") or {}
    if end.get("state") != "failed" or reason.get("kind") != "torchrun":
        return
    lines = reason.get("last_lines") or node.lines(None)
    if died := root_cause(lines):
        yield from rank_exit(node, reason.get("time") or node.last_seen, died)
        return
    kind, message, remedy = what_ended_it(end.get("exit_code"), reason.get("signal"), lines, None)
    kind = "torchrun" if kind in ("exception", "exit-code") else kind
    yield Suspect(
        Weight.EFFECT if log_patterns.is_effect(lines) and kind != "port-in-use" else Weight.CAUSE,
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
        kind, message, remedy = oom(node)
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
        event.get("exit_code") and log_patterns.is_effect(event.get("last_lines") or ())
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
