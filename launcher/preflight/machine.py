"""One machine as it was seen: plain values, and what compares them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ..engines.engine_info import EngineInfo
from ..facts.hardware import Details
from ..facts.script import Facts
from ..hosts import Host
from ..plan.topology import gpu_ids

T = TypeVar("T")


@dataclass(frozen=True)
class Unseen:
    """A machine that could not be reached or asked. error: one line, with the remedy."""

    name: str
    ranks: tuple[int, ...]
    hosts: tuple[Host, ...]
    error: str


@dataclass(frozen=True)
class Machine:
    """One machine with its nodes. engine is None where none answers or the job needs none."""

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
        """Its first node rank, which identifies it."""
        return self.ranks[0]

    @property
    def in_containers(self) -> bool:
        """Whether its nodes run in containers, even if their engine does not answer."""
        return self.engine is not None or self.engine_error is not None

    @property
    def wants_gpus(self) -> bool:
        return any(host.gpus != 0 for host in self.hosts)

    @property
    def gpus(self) -> set[int]:
        """Ids of the GPUs that its nodes use."""
        return {index for host in self.hosts for index in gpu_ids(host, self.facts)}

    @property
    def has_driver(self) -> bool:
        return self.details.kernel_driver is not None or self.facts.has_amd_gpus

    def has_address(self, ip: str) -> bool:
        return self.facts.interface_of(ip) is not None

    def shares_network_with(self, other: Machine) -> bool:
        """Whether both are names of one machine, which share all addresses."""
        return self is other or self.details.network == other.details.network != ""


def common(values: Sequence[T]) -> T:
    """The most frequent value; the first of them in a tie."""
    return max(dict.fromkeys(values), key=list(values).count)


def odd_one_out(
    machine: Machine, machines: Sequence[Machine], value: Callable[[Machine], T | None]
) -> tuple[T, T] | None:
    """This machine's value and the usual one, where they differ. Machines without a value do not count."""
    own = value(machine)
    usual = common([v for m in machines if (v := value(m)) is not None] or [own])
    return (own, usual) if own is not None and usual is not None and own != usual else None
