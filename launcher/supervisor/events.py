"""The events of a journal: written by the supervisor, parsed by `launcher.logs.event_reader`.

Annotations must be strings: only the launcher, on a newer Python, evaluates them.
"""

from __future__ import annotations

import enum
import signal
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar


class Phase(str, enum.Enum):
    """Where one start of torchrun is on one node."""

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
    """Why the nodes stop: where the problem started, and when (unix seconds on node 0's clock)."""

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
    """One line of a Python stack. text: its source code, if readable."""

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
    """The stack of one rank. frames: the main thread's, innermost last. threads: the others."""

    rank: int
    local_rank: int
    pid: int  # inside its container
    state: str  # the kernel's state: R S D T
    note: str | None = None  # why there is no stack, as a key of NOTES in diagnosis.stack_groups
    frames: tuple[Frame, ...] = ()
    threads: tuple[Thread, ...] = ()


@dataclass(frozen=True)
class StackAnswer:
    """stacks-<id>.json, the answer to a request for stacks."""

    attempt: int
    node_rank: int
    phase: Phase
    ranks: tuple[Stack, ...]


@dataclass(frozen=True)
class Event:
    kind: ClassVar[str]


@dataclass(frozen=True)
class Environment(Event):
    """The node's software: versions by name, and names of environment variables without values."""

    kind = "environment"
    versions: dict[str, str]
    variables: tuple[str, ...] = ()


@dataclass(frozen=True)
class GpuLoad:
    """use: percent. used, total: MiB of memory. clock: MHz. 0: nvidia-smi does not report it.

    ecc_errors: uncorrectable ones since the driver was loaded.
    """

    use: int
    used: int
    total: int
    clock: int = 0
    celsius: int = 0
    ecc_errors: int = 0


@dataclass(frozen=True)
class Usage(Event):
    """The load of the node. cores: busy with this run, on average since the last sample.

    minute: means of the last minute, () until there are any. ranks: alive on this node.
    """

    kind = "usage"
    cores: float
    gpus: tuple[GpuLoad, ...] = ()
    minute: tuple[GpuLoad, ...] = ()
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Clock(Event):
    """Seconds to add to this node's clock to get node 0's, and their maximum error."""

    kind = "clock"
    offset: float
    error: float


@dataclass(frozen=True)
class RankPids(Event):
    kind = "ranks"
    pids: dict[str, int]  # by global rank


@dataclass(frozen=True)
class RankExit(Event):
    """A rank ended. exit_code: None if unknown. stopping: the node was already stopping."""

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
    """What a rank called last in a process group, and the names of the calls up to it, newest last."""

    rank: int
    group: str
    number: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class Collectives(Event):
    """From the dumps of torch's flight recorder, written when the node stopped after a failure."""

    kind = "collectives"
    newest: tuple[Collective, ...]


@dataclass(frozen=True)
class Stopping(Event):
    kind = "stopping"
    reason: Reason


@dataclass(frozen=True)
class ResourceUsage(Event):
    """OOM kills since the start, memory limit and free disk space in bytes. None: not known."""

    kind = "evidence"
    oom_kills: int = 0
    memory_limit: int | None = None
    free: dict[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class RestartInPlace(Event):
    """torchrun starts again in the same containers. Later events belong to this start.

    number: of the restarts in place of this attempt. left: restarts of the run after this one.
    cause: the first failure; its kind is one of failure_kinds.txt. saved: a new checkpoint was saved
    since the previous start.
    """

    kind = "restart"
    number: int
    left: int
    saved: bool
    cause: Reason


@dataclass(frozen=True)
class End(Event):
    """The last record."""

    kind = "end"
    state: EndState
    exit_code: int | None
    reason: Reason | None = None


def document(event: Event) -> dict[str, Any]:
    """Return an event's JSON object.

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
    """Return the name of the signal in an exit code (-9: SIGKILL). None if it is not a signal's."""
    if exit_code is None or exit_code >= 0:
        return None
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return "signal %d" % -exit_code
