"""Everything that the checks may look at, as plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ..engines.engine_info import EngineInfo, ImageInfo
from ..engines.status import NodeStatus
from ..facts.hardware import Details
from ..facts.nvidia import GpuState
from ..facts.script import Facts
from ..hosts import Cluster, Host
from ..plan.topology import gpu_ids, ids_by_uuid
from .findings import Problem

T = TypeVar("T")


@dataclass(frozen=True)
class Unseen:
    """A machine that gave no answer."""

    name: str
    ranks: tuple[int, ...]
    problem: Problem


@dataclass(frozen=True)
class Machine:
    """A machine with its nodes. engine: None if it does not answer or the job needs none."""

    name: str
    ranks: tuple[int, ...]
    hosts: tuple[Host, ...]
    facts: Facts
    engine: EngineInfo | None = None
    engine_error: str | None = None

    @property
    def details(self) -> Details:
        return self.facts.details or Details()

    @property
    def rank(self) -> int:
        """The machine's first node rank, which identifies it."""
        return self.ranks[0]

    @property
    def in_containers(self) -> bool:
        """Whether the nodes run in containers, even if their engine does not answer."""
        return self.engine is not None or self.engine_error is not None

    @property
    def wants_gpus(self) -> bool:
        return any(host.gpus != 0 for host in self.hosts)

    @property
    def gpus(self) -> set[int]:
        """Ids of the GPUs that the nodes use."""
        return {index for host in self.hosts for index in gpu_ids(host, self.facts)}

    @property
    def gpus_by_uuid(self) -> dict[str, int]:
        """Ids of the GPUs that the nodes use, by UUID (see `ids_by_uuid`)."""
        return {u: gpu for host in self.hosts for u, gpu in ids_by_uuid(host, self.facts).items()}

    @property
    def gpu_states(self) -> list[GpuState]:
        return [gpu for gpu in self.details.nvidia.gpus if gpu.index in self.gpus]

    @property
    def run_nodes(self) -> tuple[NodeStatus, ...]:
        return self.engine.nodes if self.engine else ()

    @property
    def has_driver(self) -> bool:
        return self.details.kernel_driver is not None or self.facts.has_amd_gpus

    def shares_network_with(self, other: Machine) -> bool:
        """Return whether both have one network stack, and therefore the same addresses."""
        return self is other or self.facts.network_stack == other.facts.network_stack != ""


@dataclass(frozen=True)
class Answer:
    """The outcome of dialling an address. seconds: until a peer answered.

    result: ok, wrong (another machine answered), refused, timeout, unreachable, or silent (the
    dialling machine did not report).
    """

    result: str
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return self.result == "ok"


@dataclass(frozen=True)
class Route:
    """How a machine is reached. address: None if none works for all machines that dialled it.

    why: the reason for the choice, or for the lack of one.
    """

    address: str | None = None
    interface: str | None = None
    why: str = "not tried"


@dataclass(frozen=True)
class Reach:
    """The probe's results. Machines are identified by their first node rank.

    answers: by (target, address, is_master_port), then by source. cut_off: machines that
    reached no other, whose answers are left out. unprobed: machines on which no agent could run.
    """

    answers: Mapping[tuple[int, str, bool], Mapping[int, Answer]] = field(default_factory=dict)
    routes: Mapping[int, Route] = field(default_factory=dict)
    cut_off: frozenset[int] = frozenset()
    unprobed: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Inventory:
    """The machines that answered. here: the job's image on the launching machine."""

    cluster: Cluster
    machines: Sequence[Machine]
    here: ImageInfo | None = None
    reach: Reach = field(default_factory=Reach)
    waits: bool = False  # the launch will wait for GPUs of other runs

    def route(self, machine: Machine) -> Route:
        return self.reach.routes.get(machine.rank, Route())

    def answers(self, machine: Machine, ip: str, *, master: bool = False) -> Mapping[int, Answer]:
        """Return the answers by source, on the probe's or the master port."""
        return self.reach.answers.get((machine.rank, ip, master), {})


def common(values: Sequence[T]) -> T:
    """Return the most frequent value; the first one in a tie."""
    return max(dict.fromkeys(values), key=list(values).count)


def odd_one_out(
    machine: Machine, machines: Sequence[Machine], value: Callable[[Machine], T | None]
) -> tuple[T, T] | None:
    """Return this machine's value and the usual one if they differ. Ignores machines without a value."""
    own = value(machine)
    usual = common([v for m in machines if (v := value(m)) is not None] or [own])
    return (own, usual) if own is not None and usual is not None and own != usual else None
