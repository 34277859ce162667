"""Who dials whom, and which address and interface each machine is reached by. Pure.

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

NEIGHBOURS = 3  # hosts that dial each host, beside all hosts dialling node 0

# Bridges and tunnels of container engines and hypervisors: no other host is reached through them.
_LOCAL_ONLY = re.compile(
    r"docker\d*|br-[0-9a-f]{6,}|veth.*|virbr\d+.*|lxcbr\d+|cni.*|podman\d*|flannel.*"
)


@dataclass(frozen=True)
class Dial:
    """One connection to try, from one machine to an address of another."""

    source: int
    target: int
    address: str
    is_master_port: bool = False


Answers = Mapping[Dial, Answer]


def candidates(machine: Machine, others: Iterable[Machine]) -> list[Address]:
    """Addresses that other machines may reach this one by, best first.

    Loopback, link-local and container bridges are left out, and so is every address that another
    machine has as well.
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
    """Fast interfaces first, then the address that SSH uses, then IPv4 before IPv6."""
    nic = machine.details.interface(address.interface)
    by_ssh = machine.facts.ssh_server_ip == address.ip
    is_bridge = nic is not None and nic.is_bridge
    return (is_bridge, -(nic.speed if nic else 0), not by_ssh, ":" in address.ip)


def _candidates(machines: Mapping[int, Machine]) -> dict[int, list[Address]]:
    """Return those of all machines. Two holders of an address, on different networks, show that it
    is shared.
    """
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
    """(source, target): all dial the first machine, and its NEIGHBOURS predecessors dial each other one.

    That is linear in the number of machines; `everyone` is all pairs. Machines that share a network
    do not dial each other.
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
    """Return every candidate address, for each pair; with master_port also that port of node 0."""
    addresses = _candidates(machines)
    return [
        Dial(source, target, address.ip, is_master)
        for source, target in chosen
        for address in addresses[target]
        for is_master in ([False, True] if master_port and target == 0 else [False])
    ]


def is_settled(dials: Sequence[Dial], answers: Answers) -> bool:
    """Return every target has an address at which all its dials succeeded."""
    failed = {(d.target, d.address) for d in dials if d not in answers or not answers[d].ok}
    reached = {d.target for d in dials if (d.target, d.address) not in failed}
    return reached == {d.target for d in dials}


def retries(answers: Answers) -> list[Dial]:
    """Return the dials that timed out, and for each of their sources one that succeeded, as a
    control.
    """
    failed = [dial for dial, answer in answers.items() if answer.result == "timeout"]
    controls = {dial.source: dial for dial, answer in answers.items() if answer.ok}
    return list(
        dict.fromkeys([*failed, *(controls[d.source] for d in failed if d.source in controls)])
    )


def retried(answers: Answers, again: Answers) -> dict[Dial, Answer]:
    """Return the first answers, corrected by the second ones.

    A timeout counts only if the same dial fails again while its source's control succeeds. Of a
    source that has reached nobody at all, there is no control, and its timeouts count.
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
    """Machines that reached none of several others, each of which some other machine reached."""
    reached = {dial.target for dial, answer in answers.items() if answer.ok}
    spoke = {dial.source for dial, answer in answers.items() if answer.result in ("ok", "silent")}
    targets: dict[int, set[int]] = {}
    for dial in answers:
        targets.setdefault(dial.source, set()).add(dial.target)
    return {s for s, to in targets.items() if s not in spoke and len(to) > 1 and to <= reached}


def reach_of(machines: Mapping[int, Machine], seen: Iterable[int], answers: Answers) -> Reach:
    """What these answers say. machines: those with an agent, among all that were seen."""
    lost = cut_off(answers)
    kept = {dial: answer for dial, answer in answers.items() if dial.source not in lost}
    unprobed = frozenset(seen) - machines.keys()
    return Reach(grouped(kept), choose(machines, kept), frozenset(lost), unprobed)


def choose(machines: Mapping[int, Machine], answers: Answers) -> dict[int, Route]:
    """For each machine its best address among those that every machine that dialled it reached."""
    met = grouped(answers)
    return {
        rank: _route(machines[rank], rank, addresses, met)
        for rank, addresses in _candidates(machines).items()
    }


def _route(machine: Machine, rank: int, addresses: Sequence[Address], answers: Grouped) -> Route:
    passed: list[str] = []
    for address in addresses:
        met = answers.get((rank, address.ip, False), {})
        if met and all(answer.ok for answer in met.values()):
            given = any(host.internal_ip == address.ip for host in machine.hosts)
            why = "given as internal_ip" if given else f"reached from {len(met)} of {len(met)}"
            why += f", not over {', '.join(passed)}" if passed else ""
            return Route(address.ip, address.interface or None, why)
        passed.append(address.interface)
    return Route(why="no address is reached from every other host")


def grouped(answers: Answers) -> Grouped:
    """By what was dialled, and then by source."""
    found: dict[tuple[int, str, bool], dict[int, Answer]] = {}
    for dial, answer in answers.items():
        at = (dial.target, dial.address, dial.is_master_port)
        found.setdefault(at, {})[dial.source] = answer
    return found


def addressed(
    cluster: Cluster, machines: Mapping[int, Machine], routes: Mapping[int, Route]
) -> Cluster:
    """Return the cluster with the routes as internal_ip and interface, where the hosts file gives
    none.
    """
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
