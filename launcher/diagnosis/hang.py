"""What is said of a run that hung: by the stacks that its supervisors took before they ended it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.diagnosis.evidence import Evidence, NodeEvidence
from launcher.diagnosis.stack_groups import Group, Standing, elsewhere, grouped, standing

FRAMES = 8  # of a group, in an excerpt; the innermost


@dataclass(frozen=True)
class Hang:
    """`rank` is the one that stands elsewhere than all others, `node` its node, where there is one."""

    message: str
    lines: tuple[str, ...]
    rank: Standing | None = None
    node: NodeEvidence | None = None


def hang(evidence: Evidence, message: str) -> Hang | None:
    """`message` is the supervisor's, `no progress for 30 s`. None without stacks."""
    groups = grouped(
        standing(rank, node.host, node.node_rank)
        for node in evidence.nodes
        for _, event in node.of("stacks")[-1:]
        for rank in event["ranks"]
    )
    if not groups:
        return None
    odd = elsewhere(groups)
    others = [group for group in groups if group not in odd]
    lines = [line for group in [*odd[:1], *others[:1]] for line in shown(group)]
    if not odd:
        return Hang(message, tuple(lines))
    who, said = odd[0], odd[0].first.says()
    if len(odd) > 1 or len(who.members) > 1:
        names = "; ".join(f"{group.who()} {group.first.says()}" for group in odd)
        return Hang(f"{message}: some stand elsewhere than the others: {names}", tuple(lines))
    node = next(node for node in evidence.nodes if node.node_rank == who.first.node_rank)
    sentence = f"stands elsewhere than the others, and there was {message}: {said}"
    return Hang(sentence, tuple(lines), who.first, node)


def shown(group: Group) -> list[str]:
    frames = [f"  {frame}" for frame in group.first.frames[-FRAMES:]]
    return [f"{group.who()}:", *(frames or [f"  {group.first.says()}"])]
