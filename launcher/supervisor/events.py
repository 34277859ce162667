"""The events of a journal: written by the supervisor, parsed by `launcher.logs.event_reader`.

Annotations must be strings, because only the launcher, on a newer Python, evaluates them.
"""

from __future__ import annotations

import enum
import signal
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar


class Phase(str, enum.Enum):
    """The phase of one start of torchrun on one node."""

    RUNNING = "running"
    DONE = "done"  # torchrun succeeded
    STOPPED = "stopped"  # torchrun ended in any other way


class EndState(str, enum.Enum):
    """How a node ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"  # because of another node, or by a signal to its supervisor
    CANCELLED = "cancelled"
    HUNG = "hung"


@dataclass(frozen=True)
class Reason:
    """Why the nodes stop: what happened, where, and when (unix seconds on node 0's clock)."""

    kind: str
    message: str
    node_rank: int
    host: str = ""
    time: float = 0.0
    rank: int | None = None
    local_rank: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    last_lines: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        return headline(self.message, self.host, self.node_rank, self.rank, self.local_rank)


@dataclass(frozen=True)
class Frame:
    """One frame of a Python stack. text: its line of source code; "" if unreadable."""

    file: str
    line: int
    function: str
    text: str = ""


@dataclass(frozen=True)
class Thread:
    thread: str
    frames: tuple[Frame, ...]


@dataclass(frozen=True)
class Stack:
    """The stack of a rank. frames: the main thread's, innermost last. threads: the others."""

    rank: int
    local_rank: int
    pid: int  # as seen inside its container
    state: str  # the process state from /proc: R, S, D or T
    note: str | None = None  # why there is no stack, as a key of NOTES in diagnosis.stack_groups
    frames: tuple[Frame, ...] = ()
    threads: tuple[Thread, ...] = ()


@dataclass(frozen=True)
class StackAnswer:
    """The contents of stacks-<id>.json, the answer to a request for stacks."""

    phase: Phase
    ranks: tuple[Stack, ...]


@dataclass(frozen=True)
class Event:
    kind: ClassVar[str]


@dataclass(frozen=True)
class Environment(Event):
    """The node's software. versions: by package name. variables: names of environment variables."""

    kind = "environment"
    versions: dict[str, str]
    variables: tuple[str, ...] = ()


@dataclass(frozen=True)
class GpuLoad:
    """The load of a GPU. use: percent. used, total: MiB of memory. clock: MHz.

    ecc_errors: uncorrectable errors since the driver was loaded. 0 also means not reported.
    """

    use: int
    used: int
    total: int
    clock: int = 0
    celsius: int = 0
    ecc_errors: int = 0


@dataclass(frozen=True)
class Usage(Event):
    """The load of the node. cores: how many CPU cores this run kept busy since the last sample.

    minute: the mean loads over the last minute; () if unknown. ranks: the live ranks on this node.
    """

    kind = "usage"
    cores: float
    gpus: tuple[GpuLoad, ...] = ()
    minute: tuple[GpuLoad, ...] = ()
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Clock(Event):
    """This node's clock. offset: seconds to add to get node 0's time. error: its maximum error."""

    kind = "clock"
    offset: float
    error: float


@dataclass(frozen=True)
class RankPids(Event):
    """The ranks that have started. As a node's first event, it shows that the node is running."""

    kind = "ranks"
    pids: dict[str, int]  # by global rank


@dataclass(frozen=True)
class RankExit(Event):
    """The end of a rank. exit_code: None if unknown. stopping: whether the node was stopping."""

    kind = "rank_exit"
    rank: int
    local_rank: int
    exit_code: int | None
    pid: int = 0
    signal: str | None = None
    time: float | None = None
    stopping: bool = False
    message: str | None = None
    traceback: str | None = None
    last_lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class RankStacks(Event):
    kind = "stacks"
    ranks: tuple[Stack, ...]


@dataclass(frozen=True)
class Collective:
    """A rank's last collective in a process group. names: the names of the last calls, in order."""

    rank: int
    group: str
    number: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class Collectives(Event):
    """The ranks' last collectives, which torch's flight recorder dumped after a failure."""

    kind = "collectives"
    newest: tuple[Collective, ...]


@dataclass(frozen=True)
class Stopping(Event):
    kind = "stopping"
    reason: Reason


@dataclass(frozen=True)
class ResourceUsage(Event):
    """The resources of a node that can run out. memory_limit, free: bytes; None if unknown.

    oom_kills: the OOM kills since torchrun started. free: the free space, by the disk's name.
    """

    kind = "evidence"
    oom_kills: int = 0
    memory_limit: int | None = None
    free: dict[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class RestartInPlace(Event):
    """torchrun starts again in the same containers. Later events belong to this start.

    number: counts the attempt's restarts in place, from 1. left: how many more restarts the run may
    have. cause: the first failure, of a kind in failure_kinds.txt. saved: whether a new checkpoint was
    saved since the previous start.
    """

    kind = "restart"
    number: int
    left: int
    saved: bool
    cause: Reason


@dataclass(frozen=True)
class End(Event):
    """How the node ended: the last event of a journal."""

    kind = "end"
    state: EndState
    exit_code: int | None
    reason: Reason | None = None


def document(event: Event) -> dict[str, Any]:
    """Return the event as a JSON object.

    `kind` comes last, so that a shell script can recognize the `end` event with grep.
    """
    return dict(asdict(event), kind=event.kind)


def headline(
    message: str, host: str, node_rank: int, rank: int | None, local_rank: int | None
) -> str:
    """Return one sentence about a failure: which rank or node failed, and how."""
    if rank is None:
        return "%s (node %s): %s" % (host, node_rank, message)
    return "rank %s (%s, local_rank %s) %s" % (rank, host, local_rank, message)


def signal_name(exit_code: int | None) -> str | None:
    """Return the name of the signal that an exit code stands for (-9: SIGKILL), or None."""
    if exit_code is None or exit_code >= 0:
        return None
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return "signal %d" % -exit_code
