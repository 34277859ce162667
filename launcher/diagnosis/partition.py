"""Nodes that lost sight of each other: which of them was it that the network left out? Pure.

A node that cannot be heard cannot hear either, and says that the others are gone, while it runs on. Each
word alone sounds the same; the one whom most others accuse was cut off.
"""

from __future__ import annotations

from launcher.diagnosis.evidence import Evidence, NodeEvidence


def accused_by(node: NodeEvidence) -> set[int]:
    """The node ranks that this one says it lost."""
    reasons = [event.get("reason") or {} for _, event in node.of("stopping")]
    lost = {r.get("node_rank") for r in reasons if r.get("kind") == "peer-lost"}
    return {rank for rank in lost if isinstance(rank, int) and rank != node.node_rank}


def cut_each_other_off(one: NodeEvidence, other: NodeEvidence) -> bool:
    """`one`, which `other` has lost, lost somebody too: so it was not dead."""
    return one is not other and one.end is not None and bool(accused_by(one))


def cut_off(evidence: Evidence) -> NodeEvidence | None:
    """The node that ran on and that most others lost; None: nobody, or it cannot be told."""
    voices = [accused for node in evidence.nodes for accused in accused_by(node)]
    votes = {node.node_rank: voices.count(node.node_rank) for node in evidence.nodes}
    most = max(votes.values(), default=0)
    named = [node for node in evidence.nodes if votes[node.node_rank] == most]
    if most < 2 or len(named) > 1 or named[0].end is None or not accused_by(named[0]):
        return None
    return named[0]
