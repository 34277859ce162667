"""What is known of an attempt once it has ended: what each node said, and its engine. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

FULL = 65536  # bytes free, or less: nothing more can be written


@dataclass(frozen=True)
class NodeEvidence:
    """What is known of one node once its attempt has ended."""

    node_rank: int
    host: str
    clock_skew: float = 0.0  # seconds that its clock is ahead of the launching machine's
    events: Sequence[tuple[float, dict[str, Any]]] = ()  # (journal's time, event)
    tail: Sequence[tuple[float, int | None, bytes]] = ()  # newest lines: (time, rank, text)
    exit_code: int | None = None  # of its container, by the engine
    oom_killed: bool = False  # as the engine says
    unseen: str | None = None  # why the launching machine cannot see it, if so

    def of(self, kind: str) -> list[tuple[float, dict[str, Any]]]:
        return [(time, event) for time, event in self.events if event.get("kind") == kind]

    def lines(self, rank: int | None) -> list[str]:
        return [text.decode(errors="replace") for _, who, text in self.tail if who == rank]

    @property
    def end(self) -> dict[str, Any] | None:
        return next((event for _, event in self.of("end")), None)

    @property
    def last_seen(self) -> float:
        """Time of its newest record, 0.0 without any."""
        times = [time for time, _ in self.events] + [time for time, _, _ in self.tail]
        return max(times, default=0.0)


@dataclass(frozen=True)
class Evidence:
    nproc_per_node: int
    nodes: Sequence[NodeEvidence]


def on_one_clock(evidence: Evidence) -> Evidence:
    """The supervisors measured their clocks against node 0's, and better than SSH can."""
    base = next((node.clock_skew for node in evidence.nodes if node.node_rank == 0), 0.0)
    nodes = []
    for node in evidence.nodes:
        clocks = [event for _, event in node.of("clock")]
        if clocks:
            best = min(clocks, key=lambda clock: float(clock["error"]))
            node = replace(node, clock_skew=base - float(best["offset"]))
        nodes.append(node)
    return replace(evidence, nodes=nodes)


def oom_kills(node: NodeEvidence) -> int:
    return max((int(event.get("oom_kills") or 0) for _, event in node.of("evidence")), default=0)


def full_disks(node: NodeEvidence) -> list[str]:
    """Names of the disks with no room at the time of the failure."""
    free = [event.get("free") or {} for _, event in node.of("evidence")[:1]]
    return [
        name for disks in free for name, left in disks.items() if left is not None and left < FULL
    ]
