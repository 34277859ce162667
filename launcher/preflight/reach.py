"""Determine which machines reach which addresses: the dials to try, and their results. Pure.

Machines are identified by their first node rank.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..plan.node_address import candidates
from .machine import Machine


@dataclass(frozen=True)
class Dial:
    """A connection to try, from one machine to an address of another."""

    source: int
    target: int
    ip: str


@dataclass(frozen=True)
class DialResult:
    """The result of a dial. seconds: the time until the machine answered, over all tries.

    outcome: ok, wrong (another machine answered), refused, timeout or unreachable.
    """

    outcome: str
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return self.outcome == "ok"


@dataclass(frozen=True)
class Reach:
    """The results of the probe.

    results: the results that agents reported, by dial. unprobed: machines on which no agent could
    run. unfinished: machines whose agent did not report all of its dials. master: the results of
    the dials to node 0's master port.
    """

    results: Mapping[Dial, DialResult] = field(default_factory=dict)
    unprobed: frozenset[int] = frozenset()
    unfinished: frozenset[int] = frozenset()
    master: Mapping[Dial, DialResult] = field(default_factory=dict)

    @functools.cached_property
    def cut_off(self) -> frozenset[int]:
        """The machines that reached none of their targets, although others reached each target."""
        targets: dict[int, set[int]] = {}
        for dial in self.results:
            targets.setdefault(dial.source, set()).add(dial.target)
        connected = [dial for dial, result in self.results.items() if result.ok]
        sources, reached = {d.source for d in connected}, {d.target for d in connected}
        return frozenset(
            source
            for source, tried in targets.items()
            if source not in sources and tried <= reached
        )

    @functools.cached_property
    def by_address(self) -> Mapping[tuple[int, str], Mapping[int, DialResult]]:
        """The results by target and ip, then by source. Those of cut-off machines are left out."""
        grouped: dict[tuple[int, str], dict[int, DialResult]] = {}
        for dial, result in self.results.items():
            if dial.source not in self.cut_off:
                grouped.setdefault((dial.target, dial.ip), {})[dial.source] = result
        return grouped

    @functools.cached_property
    def unreached(self) -> frozenset[str]:
        """The addresses that some machine, other than those cut off, could not connect to.

        An address that two hosts claim counts as reached if either host was reached at it.
        """
        ips: dict[bool, set[str]] = {True: set(), False: set()}
        for (_, ip), results in self.by_address.items():
            ips[all(result.ok for result in results.values())].add(ip)
        return frozenset(ips[False] - ips[True])


def addresses_to_dial(machines: Sequence[Machine]) -> dict[int, list[str]]:
    """Return the addresses of each machine's first node, best first, by that node's rank."""
    hosts, facts = [m.hosts[0] for m in machines], [m.facts for m in machines]
    listed = candidates(hosts, facts)
    return {m.rank: [a.ip for a in own] for m, own in zip(machines, listed, strict=True)}


def dials_to(addresses: Mapping[int, Sequence[str]], machines: Sequence[Machine]) -> list[Dial]:
    """Return a dial from every machine to each address. addresses: by the target's first rank.

    Machines that share a network stack do not dial each other.
    """
    return [
        Dial(source.rank, target.rank, ip)
        for target in machines
        for source in machines
        if not source.shares_network_with(target)
        for ip in addresses.get(target.rank, ())
    ]


def dials_to_rails(machines: Sequence[Machine]) -> list[Dial]:
    """Return a dial to each RoCE address, from the previous machine in a ring of all machines."""
    return [
        Dial(source.rank, target.rank, address.ip)
        for target, source in zip(machines, [*machines[-1:], *machines[:-1]], strict=True)
        if not source.shares_network_with(target)
        for address in target.facts.roce_addresses
    ]
