"""Determine which failure was first, and why, from the evidence of all nodes. Pure.

Each node reports what it observed: ranks that exited, peers that it lost, torchrun's own output.
Each observation is a candidate. Causes rank before witnesses, and witnesses before effects, because
a rank that fails only because its peer is gone may well be reported first. Among equals, the
earliest one wins, by a common clock.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ..facts.xids import XIDS
from ..failure import FirstFailure
from ..supervisor import classify, quoted_error
from ..supervisor.classify import Ending, Weight
from ..supervisor.events import RankExit, Reason, ResourceUsage, RestartInPlace, Stopping
from ..supervisor.failure_kinds import KINDS
from ..text import rfc3339
from .evidence import Evidence, NodeEvidence, of_last_round, on_one_clock
from .missed_collective import missed_collective
from .stack_groups import newest_groups, stragglers

FRAMES = 8  # number of innermost frames to quote from a stack
WAITING = ("collective-timeout", "hung")
# Kinds of failure that a broken GPU causes in its rank. Each may have other causes too.
GPU_SYMPTOMS = (*WAITING, "cuda-error", "cuda-missing", "peer-gone")


class Candidate(NamedTuple):
    """One observation that may be the first failure."""

    weight: Weight
    time: float  # unix seconds on the launching machine's clock
    node: NodeEvidence
    failure: FirstFailure

    def but(self, node: NodeEvidence | None = None, **changes: Any) -> "Candidate":
        """Return a copy with `changes` made to its failure. node: if given, the node to blame."""
        node = node or self.node
        failure = replace(self.failure, host=node.host, node_rank=node.node_rank, **changes)
        return self._replace(node=node, failure=failure)


def first_failure(evidence: Evidence) -> FirstFailure | None:
    """Return the first failure, or None if the evidence shows none."""
    evidence = of_last_round(on_one_clock(evidence))
    observations: list[Candidate | None] = []
    for node in evidence.nodes:
        for time, exit in node.timed(RankExit):
            if exit.rank in range(evidence.world_size):
                observations.append(_rank_exit(node, exit.time or time, exit))
        for time, stop in node.timed(Stopping):
            observations.append(_stop(stop.reason, time, node, evidence))
        observations.append(_sudden_end(node, evidence))
    candidates = [_blame_gpu(candidate) for candidate in observations if candidate]
    if all(candidate.failure.exit_code == 0 and candidate.weight for candidate in candidates):
        return None
    first = min(candidates, key=lambda candidate: (candidate.weight, candidate.time)).failure
    if first.kind in WAITING and (missed := missed_collective(evidence)):
        first = replace(first, message=f"{first.message}; {missed}")
    return first


def _candidate(
    ending: Ending, time: float, node: NodeEvidence, who: RankExit | Reason, lines: Sequence[str]
) -> Candidate:
    """Return a candidate. who: the rank that ended, or the reason for a stop. lines: what to quote."""
    failure = FirstFailure(
        host=node.host,
        node_rank=node.node_rank,
        rank=who.rank,
        local_rank=who.local_rank,
        exit_code=who.exit_code,
        signal=who.signal,
        kind=ending.kind,
        time=rfc3339(time),
        message=ending.message,
        excerpt=_excerpt(lines),
        remedy=ending.remedy or KINDS[ending.kind].remedy,
    )
    return Candidate(ending.weight, time, node, failure)


def _excerpt(lines: Sequence[str]) -> str:
    return "\n".join(quoted_error.excerpt(lines))


def _rank_exit(node: NodeEvidence, time: float, exit: RankExit) -> Candidate | None:
    """Return the rank's failure, or None if the rank exited with 0 when it was asked to stop."""
    # after a restart in place, the out-of-memory kill may be from an earlier round
    oom_killed = node.oom_killed and not node.of(RestartInPlace)
    ending = classify.rank_ending(exit, node.of(ResourceUsage), oom_killed=oom_killed)
    lines = classify.exit_lines(exit)
    return _candidate(ending, time - node.clock_skew, node, exit, lines) if ending else None


def _blame_gpu(candidate: Candidate) -> Candidate:
    """Return the candidate, blaming the rank's GPU if a fault that the driver logged may be the cause."""
    node, failure = candidate.node, candidate.failure
    gpus: dict[int | None, str] = dict(enumerate(node.gpus))
    pci = gpus.get(failure.local_rank)
    fault = next((n for gpu, n in reversed(node.xids) if gpu == pci and n in XIDS), None)
    if fault is None or failure.kind not in GPU_SYMPTOMS:
        return candidate
    meaning, remedy = XIDS[fault]
    message = f"{failure.message}; its GPU ({pci}) has reported Xid {fault}: {meaning}"
    blamed = candidate.but(kind="gpu-failed", message=message, remedy=remedy)
    return blamed._replace(weight=Weight.CAUSE)


def _sudden_end(node: NodeEvidence, evidence: Evidence) -> Candidate | None:
    """Return the failure of a node that ended or was lost before its supervisor reported an end.

    Return None if the supervisor reported an end or a stop, or if only the launching machine lost
    contact.
    """
    if node.end is not None or node.reasons:
        return None
    others = [other for other in evidence.nodes if other is not node]
    reasons = [reason for other in others for reason in other.reasons]
    lost = [r for r in reasons if r.kind == "host-lost" and r.node_rank == node.node_rank]
    exits = [exit for other in others for exit in other.of(RankExit) if exit.exit_code]
    kinds = (classify.describe(e.exit_code, e.last_lines)[0] for e in exits)
    weight, kind = Weight.CAUSE, "host-lost"
    if node.oom_killed:
        kind, message = "oom-killed", classify.oom_message(node.of(ResourceUsage))
    elif node.exit_code is not None or (node.exited and not node.unseen):
        code = node.exit_code
        how = "and left no exit code" if code is None else f"(exit code {code})"
        kind, message = "container-killed", f"its {node.unit} was killed {how}"
        if code in range(1, 128) and not node.events:  # perhaps the image has no python3
            kind, message = "start", f"its {node.unit} ended before it could do anything {how}"
    elif lost or not node.unseen:
        message = f"the host is lost: {lost[0].message if lost else f'its {node.unit} is gone'}"
    elif "peer-gone" in kinds:
        weight = Weight.UNREACHABLE
        why = f"connections to it broke, and it did not answer: {node.unseen}"
        message = f"the host is lost: {why}"
    else:
        return None  # only the launching machine lost contact
    who = Reason(kind, message, node.node_rank, exit_code=node.exit_code)
    time = node.last_seen - node.clock_skew
    return _candidate(Ending(weight, kind, message), time, node, who, ())


# --- why a supervisor stopped its node: a failure on this node or on another one ------------------


def _stop(reason: Reason, seen: float, node: NodeEvidence, evidence: Evidence) -> Candidate | None:
    """Return the candidate for a node's reason to stop.

    Return None if a failed rank's own event describes the failure, or if `kill` stopped the node.
    seen: when `node` recorded the reason, by the node's own clock.
    """
    about = next((n for n in evidence.nodes if n.node_rank == reason.node_rank), node)
    ending = classify.stop_ending(reason)
    if ending is None:
        return None
    candidate = _candidate(ending, seen - node.clock_skew, about, reason, reason.last_lines)
    if reason.kind == "hung":
        return _hung(candidate, evidence)
    if reason.kind == "host-lost" and about is not node and about.end and about.lost_peers:
        return _network_cut(candidate, evidence)
    return candidate


def _network_cut(candidate: Candidate, evidence: Evidence) -> Candidate:
    """Blame the network, because the lost node was still running and had lost contact too.

    Both sides report that they lost each other. The node that was cut off is the one that most
    nodes lost.
    """
    lost = [rank for node in evidence.nodes for rank in node.lost_peers]
    most = max(lost.count(node.node_rank) for node in evidence.nodes)
    isolated = [node for node in evidence.nodes if lost.count(node.node_rank) == most]
    if most > 1 and len(isolated) == 1 and isolated[0].end and isolated[0].lost_peers:
        message = "lost contact with the other nodes while still running"
        remedy = KINDS["network-cut"].remedy
        return candidate.but(isolated[0], kind="network-cut", message=message, remedy=remedy)
    remedy = "both hosts were up, but could not reach each other: check the network between them"
    return candidate.but(kind="network-cut", remedy=remedy)


def _hung(candidate: Candidate, evidence: Evidence) -> Candidate:
    """Return the candidate with the stragglers named, from stacks taken before the run was stopped."""
    groups = newest_groups(evidence.nodes)
    if not groups:
        return candidate
    message = candidate.failure.message  # "no progress for 30 s"
    odd = stragglers(groups)
    rest = [group for group in groups if group not in odd]
    lines = [line for group in [*odd[:1], *rest[:1]] for line in group.excerpt(FRAMES)]
    candidate = candidate.but(excerpt=_excerpt(lines))
    if len(odd) == 1 and len(odd[0].members) == 1:
        rank = odd[0].first
        return candidate.but(
            next(node for node in evidence.nodes if node.node_rank == rank.node_rank),
            rank=rank.rank,
            local_rank=rank.local_rank,
            message=f"is not where the other ranks are: {rank.describe()}; {message}",
        )
    if odd:
        names = "; ".join(f"{group.name} {group.first.describe()}" for group in odd)
        message += f"; some ranks are not where the rest are: {names}"
    return candidate.but(message=message)
