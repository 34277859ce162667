"""Choose which machines dial each other, and each machine's address and interface. Pure.

Machines are identified by their first node rank.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..facts.network import Address
from ..hosts import Cluster
from .inventory import Answer, Grouped, Machine, Reach, Route

NEIGHBOURS = 3  # number of hosts that dial each host, in addition to all hosts dialling node 0

# Bridges and tunnels of container engines and hypervisors, which reach no other host.
_LOCAL_ONLY = re.compile(
    r"docker\d*|br-[0-9a-f]{6,}|veth.*|virbr\d+.*|lxcbr\d+|cni.*|podman\d*|flannel.*"
)


@dataclass(frozen=True)
class Dial:
    """A connection to try, from one machine to an address of another."""

    source: int
    target: int
    address: str
    is_master_port: bool = False


Answers = Mapping[Dial, Answer]


def candidates(machine: Machine, others: Iterable[Machine]) -> list[Address]:
    """Return the addresses at which other machines may reach this one, best first.

    Excludes loopback, link-local and container bridges, and addresses that another machine has too.
    """
    known = {address.ip: address for address in machine.facts.addresses}
    if given := {host.internal_ip for host in machine.hosts if host.internal_ip}:
        return [known.get(ip, Address(ip, "")) for ip in sorted(given)]
    wanted = {host.interface for host in machine.hosts if host.interface}
    elsewhere = {
        address.ip
        for other in others
        if not other.shares_network_with(machine)
        for address in other.facts.addresses
    }
    found = [
        a
        for a in machine.facts.addresses
        if not _is_useless(a.ip)
        and a.ip not in elsewhere
        and (a.interface in wanted if wanted else not _LOCAL_ONLY.fullmatch(a.interface))
    ]
    return sorted(found, key=lambda address: _preference(machine, address))


def _is_useless(ip: str) -> bool:
    address = ipaddress.ip_address(ip)
    return address.is_loopback or address.is_link_local or address.is_unspecified


def _preference(machine: Machine, address: Address) -> tuple[int, int, int, int]:
    """Rank an address: fast interfaces first, then the SSH address, then IPv4 before IPv6."""
    nic = machine.details.interface(address.interface)
    by_ssh = machine.facts.ssh_server_ip == address.ip
    is_bridge = nic is not None and nic.is_bridge
    return (is_bridge, -(nic.speed if nic else 0), not by_ssh, ":" in address.ip)


def _candidates(machines: Mapping[int, Machine]) -> dict[int, list[Address]]:
    """Return all machines' candidates, except addresses that exist on two different networks."""
    holders: dict[str, list[Machine]] = {}
    for machine in machines.values():
        for address in machine.facts.addresses:
            known = holders.setdefault(address.ip, [])
            if len(known) < 2 and not any(machine.shares_network_with(other) for other in known):
                known.append(machine)
    return {
        rank: candidates(machine, [m for a in machine.facts.addresses for m in holders[a.ip]])
        for rank, machine in machines.items()
    }


def pairs(machines: Mapping[int, Machine], *, everyone: bool = False) -> list[tuple[int, int]]:
    """Return (source, target) pairs: all machines dial the first, and neighbours dial the others.

    The number is linear in the number of machines; `everyone` means all pairs. Machines that share
    a network do not dial each other.
    """
    order = sorted(machines)
    found = []
    for place, target in enumerate(order):
        others = reversed(order[place + 1 :] + order[:place])
        sources = (s for s in others if not machines[s].shares_network_with(machines[target]))
        most = None if everyone or place == 0 else NEIGHBOURS
        found += [(source, target) for source in itertools.islice(sources, most)]
    return found


def dials_for(
    machines: Mapping[int, Machine], chosen: Iterable[tuple[int, int]], *, master_port: bool
) -> list[Dial]:
    """Return a dial per pair and candidate address; with master_port, also to that port of node 0."""
    addresses = _candidates(machines)
    return [
        Dial(source, target, address.ip, is_master)
        for source, target in chosen
        for address in addresses[target]
        for is_master in ([False, True] if master_port and target == 0 else [False])
    ]


def is_settled(dials: Sequence[Dial], answers: Answers) -> bool:
    """Return whether every target has an address at which all its dials succeeded."""
    failed = {(d.target, d.address) for d in dials if d not in answers or not answers[d].ok}
    reached = {d.target for d in dials if (d.target, d.address) not in failed}
    return reached == {d.target for d in dials}


def retries(answers: Answers) -> list[Dial]:
    """Return the dials that timed out, with a control: one successful dial of each source."""
    failed = [dial for dial, answer in answers.items() if answer.result == "timeout"]
    controls = {dial.source: dial for dial, answer in answers.items() if answer.ok}
    return list(
        dict.fromkeys([*failed, *(controls[d.source] for d in failed if d.source in controls)])
    )


def retried(answers: Answers, again: Answers) -> dict[Dial, Answer]:
    """Return the first answers, corrected by a second round.

    A timeout counts only if the dial fails again while its source's control succeeds. A source that
    reached nobody has no control, and its timeouts count.
    """
    busy = {d.source for d, answer in again.items() if answers[d].ok and not answer.ok}
    merged = dict(answers)
    for dial, second in again.items():
        if answers[dial].ok:
            continue
        if second.ok:
            merged[dial] = Answer("ok", answers[dial].seconds + second.seconds)
        else:
            merged[dial] = Answer("silent") if dial.source in busy else second
    return merged


def cut_off(answers: Answers) -> set[int]:
    """Return the machines that reached none of several others that another machine did reach."""
    reached = {dial.target for dial, answer in answers.items() if answer.ok}
    spoke = {dial.source for dial, answer in answers.items() if answer.result in ("ok", "silent")}
    targets: dict[int, set[int]] = {}
    for dial in answers:
        targets.setdefault(dial.source, set()).add(dial.target)
    return {s for s, to in targets.items() if s not in spoke and len(to) > 1 and to <= reached}


def reach_of(machines: Mapping[int, Machine], seen: Iterable[int], answers: Answers) -> Reach:
    """Evaluate the answers. machines: those with an agent, among all in `seen`."""
    lost = cut_off(answers)
    kept = {dial: answer for dial, answer in answers.items() if dial.source not in lost}
    unprobed = frozenset(seen) - machines.keys()
    return Reach(grouped(kept), choose(machines, kept), frozenset(lost), unprobed)


def choose(machines: Mapping[int, Machine], answers: Answers) -> dict[int, Route]:
    """Choose each machine's best address among those that all its dialling machines reached."""
    by_address = grouped(answers)
    return {
        rank: _route(machines[rank], rank, addresses, by_address)
        for rank, addresses in _candidates(machines).items()
    }


def _route(machine: Machine, rank: int, addresses: Sequence[Address], answers: Grouped) -> Route:
    passed: list[str] = []
    for address in addresses:
        tried = answers.get((rank, address.ip, False), {})
        if tried and all(answer.ok for answer in tried.values()):
            given = any(host.internal_ip == address.ip for host in machine.hosts)
            why = "set as internal_ip" if given else f"reached from {len(tried)} of {len(tried)}"
            why += f", not over {', '.join(passed)}" if passed else ""
            return Route(address.ip, address.interface or None, why)
        passed.append(address.interface)
    return Route(why="no address can be reached from every other host")


def grouped(answers: Answers) -> Grouped:
    """Group answers by what was dialled, then by source."""
    found: dict[tuple[int, str, bool], dict[int, Answer]] = {}
    for dial, answer in answers.items():
        at = (dial.target, dial.address, dial.is_master_port)
        found.setdefault(at, {})[dial.source] = answer
    return found


def addressed(
    cluster: Cluster, machines: Mapping[int, Machine], routes: Mapping[int, Route]
) -> Cluster:
    """Return the cluster with the routes as internal_ip and interface, unless the hosts file sets them."""
    hosts = list(cluster.hosts)
    for first, route in routes.items():
        if route.address:
            for rank in machines[first].ranks:
                hosts[rank] = replace(
                    hosts[rank],
                    internal_ip=hosts[rank].internal_ip or route.address,
                    interface=hosts[rank].interface or route.interface,
                )
    return replace(cluster, hosts=tuple(hosts))
