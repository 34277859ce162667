"""Explain why a supervisor stopped its node: a failure there or on another node. Pure."""

from dataclasses import replace

from ..supervisor.classify import stop_ending
from ..supervisor.events import Reason
from .evidence import Candidate, Evidence, NodeEvidence
from ..supervisor.failure_kinds import FailureKind
from .stack_groups import newest_groups, stragglers

FRAMES = 8  # innermost frames of a stack to quote


def stop_reason(
    reason: Reason, seen: float, node: NodeEvidence, evidence: Evidence
) -> Candidate | None:
    """Return the candidate for a reason, or None if the reason has its own event.

    seen: when `node` recorded it, by the node's own clock.
    """
    ending = stop_ending(reason)
    if ending is None:
        return None
    about = next((n for n in evidence.nodes if n.node_rank == reason.node_rank), node)
    candidate = Candidate.of(ending, seen - node.clock_skew, about, reason, reason.last_lines)
    if reason.kind == "control-port":
        return replace(candidate, remedy="start again: ddpctl will choose another port")
    if candidate.kind == FailureKind.HUNG:
        return _hung(candidate, evidence)
    lost = candidate.kind == FailureKind.HOST_LOST
    if lost and about is not node and about.end and about.lost_peers:
        return _network_cut(candidate, evidence)
    return candidate


def _network_cut(candidate: Candidate, evidence: Evidence) -> Candidate:
    """Blame the network if the lost node was still running and had lost contact too.

    Both sides then report that they lost the other. The one cut off is the node that most others
    lost.
    """
    lost = [rank for node in evidence.nodes for rank in node.lost_peers]
    most = max(lost.count(node.node_rank) for node in evidence.nodes)
    isolated = [node for node in evidence.nodes if lost.count(node.node_rank) == most]
    if most > 1 and len(isolated) == 1 and isolated[0].end and isolated[0].lost_peers:
        message = "lost contact with the other nodes while still running"
        return replace(candidate, kind=FailureKind.NETWORK_CUT, node=isolated[0], message=message)
    remedy = "both hosts were up but could not reach each other: check the network between them"
    return replace(candidate, kind=FailureKind.NETWORK_CUT, remedy=remedy)


def _hung(candidate: Candidate, evidence: Evidence) -> Candidate:
    """Name the straggler from the stacks that the supervisors took before they stopped the run."""
    groups = newest_groups(evidence.nodes)
    if not groups:
        return candidate
    message = candidate.message  # "no progress for 30 s"
    odd = stragglers(groups)
    rest = [group for group in groups if group not in odd]
    lines = [line for group in [*odd[:1], *rest[:1]] for line in group.excerpt(FRAMES)]
    candidate = replace(candidate, lines=lines)
    if len(odd) == 1 and len(odd[0].members) == 1:
        rank = odd[0].first
        return replace(
            candidate,
            node=next(n for n in evidence.nodes if n.node_rank == rank.node_rank),
            rank=rank.rank,
            local_rank=rank.local_rank,
            message=f"is not where the other ranks are: {rank.describe()}; {message}",
        )
    if odd:
        names = "; ".join(f"{group.name} {group.first.describe()}" for group in odd)
        message += f": some ranks are not where the others are: {names}"
    return replace(candidate, message=message)
