"""The input of the checks, as plain values."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mode
from typing import TypeVar

from ..engines.choose import engine_traits
from ..engines.engine_info import ImageInfo
from ..facts.network import Address
from ..hosts import Cluster
from ..plan.node_address import node_addresses
from .findings import Finding, warning
from .machine import Machine
from .reach import DialResult, Reach, addresses_to_dial

T = TypeVar("T")


@dataclass(frozen=True)
class Fleet:
    """The machines that answered, in rank order, and what else the checks need."""

    cluster: Cluster
    machines: Sequence[Machine]
    image_here: ImageInfo | None = None  # the job's image on the launching machine
    reach: Reach = field(default_factory=Reach)
    waits: bool = False  # the launch will wait for GPUs of other runs

    @functools.cached_property
    def addresses(self) -> Mapping[int, Address]:
        """The address that the plan will choose for each machine's first node, by its rank."""
        hosts, facts = [m.hosts[0] for m in self.machines], [m.facts for m in self.machines]
        chosen = node_addresses(hosts, facts, self.reach.unreached)
        return {m.rank: address for m, address in zip(self.machines, chosen, strict=True)}

    @property
    def in_containers(self) -> bool:
        """Whether Docker or Podman runs the nodes."""
        return engine_traits(self.cluster.job.engine).keeps_containers

    def used(self, machine: Machine) -> list[Address]:
        """Return the addresses that carry traffic: the chosen one, and those of RoCE ports."""
        return list(dict.fromkeys([self.addresses[machine.rank], *machine.facts.roce_addresses]))

    @functools.cached_property
    def to_dial(self) -> Mapping[int, Sequence[str]]:
        """The addresses at which each machine might be reached, best first, by its first rank."""
        return addresses_to_dial(self.machines)

    def address(self, machine: Machine) -> tuple[Address | None, str]:
        """Return the machine's address (None if some host cannot use it), and why it was chosen."""
        address, to_dial = self.addresses[machine.rank], self.to_dial[machine.rank]
        tried = self.dialed(machine, address.ip)
        if not to_dial or not all(result.ok for result in tried.values()):
            return None, "no address can be reached from every other host"
        if any(host.internal_ip == address.ip for host in machine.hosts):
            return address, "set as internal_ip"
        if not tried:
            return address, "not tried"
        better = itertools.takewhile(lambda ip: ip != address.ip, to_dial)
        passed = [machine.facts.interface_of(ip) or ip for ip in better]
        others = f"all {len(tried)} other hosts" if len(tried) > 1 else "1 other host"
        why = f"reached from {others}"
        return address, why + (f", but not over {', '.join(passed)}" if passed else "")

    def dialed(self, machine: Machine, ip: str) -> Mapping[int, DialResult]:
        """Return the results of the dials to this address of the machine, by source."""
        return self.reach.by_address.get((machine.rank, ip), {})


def different(
    machine: Machine,
    fleet: Fleet,
    value: Callable[[Machine], str | None],
    what: str,
    remedy: str,
    kind: Callable[[str, str], Finding] = warning,
) -> Iterator[Finding]:
    """Report this machine's value if it is not the usual one. what: has a `{}` for each value."""
    if odd := odd_one_out(machine, fleet, value):
        yield kind(what.format(*odd), remedy)


def odd_one_out(
    machine: Machine, fleet: Fleet, value: Callable[[Machine], T | None]
) -> tuple[T, T] | None:
    """Return this machine's value and the usual one if they differ, else None.

    Machines whose value is None are ignored.
    """
    own = value(machine)
    usual = mode([v for m in fleet.machines if (v := value(m)) is not None] or [own])
    return (own, usual) if own is not None and usual is not None and own != usual else None
