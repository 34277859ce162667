"""Evidence about an attempt that has ended. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ..logs.event_reader import LONGEST_TEXT
from ..logs.log_entry import OutputLines
from ..outcomes import NodeState
from ..supervisor.events import (
    Clock,
    End,
    EndState,
    Event,
    GpuLoad,
    Reason,
    RestartInPlace,
    Stopping,
)
from ..text import printable

E = TypeVar("E", bound=Event)


@dataclass
class NodeEvidence:
    """Evidence about a node, from its journal, its engine and the launching machine."""

    node_rank: int
    host: str
    clock_skew: float = 0.0  # seconds by which the node's clock is ahead of the launching machine's
    events: Sequence[tuple[float, Event]] = ()  # (the node's time, event)
    newest_lines: Sequence[OutputLines] = ()  # each in an entry of its own
    exit_code: int | None = None  # reported by the supervisor, else by the engine
    exited: bool = False  # whether the engine has reported the end of the node
    unit: str = "container"  # what the engine calls a node, in messages
    oom_killed: bool = False  # according to the engine
    unseen: str | None = None  # why the launching machine cannot reach the node; None if it can
    gpus: Sequence[str] = ()  # PCI address of each local rank's GPU
    xids: Sequence[tuple[str, int]] = ()  # (PCI address, Xid) during the run, newest last
    kernel: Sequence[str] = ()  # the kernel's lines about GPUs and memory since the run's start
    gpus_before: Sequence[GpuLoad] = ()  # the first sample
    gpus_after: Sequence[GpuLoad] = ()  # after the end of the attempt

    def of(self, kind: type[E]) -> list[E]:
        return [event for _, event in self.timed(kind)]

    def timed(self, kind: type[E]) -> list[tuple[float, E]]:
        """Return the events of a kind, each with the node's time."""
        return [(time, event) for time, event in self.events if isinstance(event, kind)]

    def lines(self, rank: int) -> list[str]:
        texts = (text for entry in self.newest_lines if entry.rank == rank for text in entry.lines)
        return [printable(text[:LONGEST_TEXT].decode(errors="replace")) for text in texts]

    def between(self, start: float, end: float) -> "NodeEvidence":
        """Return a copy with only the events and lines recorded since `start` and before `end`."""
        events = [each for each in self.events if start <= each[0] < end]
        newest = [entry for entry in self.newest_lines if start <= entry.time < end]
        return replace(self, events=events, newest_lines=newest)

    @property
    def end(self) -> End | None:
        return next(reversed(self.of(End)), None)

    @property
    def end_state(self) -> NodeState:
        """The state of a node that has ended: FAILED unless it succeeded or was cancelled.

        FAILED is provisional. Once all nodes have ended, `AttemptRecord.settle_nodes` changes it to
        STOPPED for nodes that only followed another failure, or CANCELLED if the run was cancelled.
        """
        match self.end:
            case End(EndState.SUCCEEDED):
                return NodeState.SUCCEEDED
            case End(EndState.CANCELLED):
                return NodeState.CANCELLED
        return NodeState.FAILED

    @property
    def reasons(self) -> list[Reason]:
        """Why the supervisor stopped the node; [] if it did not."""
        return [event.reason for event in self.of(Stopping)]

    @property
    def lost_peers(self) -> set[int]:
        lost = {reason.node_rank for reason in self.reasons if reason.kind == "host-lost"}
        return lost - {self.node_rank}

    @property
    def last_seen(self) -> float:
        """The time of the newest journal entry by the node's clock; 0.0 if there is none."""
        times = [time for time, _ in self.events] + [entry.time for entry in self.newest_lines]
        return max(times, default=0.0)


@dataclass(frozen=True)
class Evidence:
    world_size: int
    nodes: Sequence[NodeEvidence]


def on_one_clock(evidence: Evidence) -> Evidence:
    """Return the evidence with the clock skews that the supervisors measured.

    They are more accurate than those measured over SSH. A node whose supervisor measured none keeps the
    latter.
    """
    base = next((node.clock_skew for node in evidence.nodes if node.node_rank == 0), 0.0)
    nodes = []
    for node in evidence.nodes:
        best = min(node.of(Clock), key=lambda clock: clock.error, default=None)
        nodes.append(replace(node, clock_skew=base - best.offset) if best else node)
    return replace(evidence, nodes=nodes)


def of_last_round(evidence: Evidence) -> Evidence:
    """Return the evidence without anything from before the last restart in place.

    If a node was lost before it could record that restart, nothing that it reported counts.
    """
    restarts = [restart for node in evidence.nodes for restart in node.of(RestartInPlace)]
    if not restarts:
        return evidence
    last = max(restarts, key=lambda restart: restart.number)
    nodes = []
    for node in evidence.nodes:
        times = [time for time, event in node.timed(RestartInPlace) if event.number == last.number]
        if times:
            nodes.append(node.between(times[0], math.inf))
        else:
            nodes.append(replace(node, events=[(node.last_seen, last)], newest_lines=()))
    return replace(evidence, nodes=nodes)


def before_restart(evidence: Evidence, number: int) -> Evidence:
    """Return the evidence from before the restart in place with this number."""
    nodes = []
    for node in evidence.nodes:
        times = (time for time, event in node.timed(RestartInPlace) if event.number >= number)
        nodes.append(node.between(-math.inf, min(times, default=math.inf)))
    return replace(evidence, nodes=nodes)
