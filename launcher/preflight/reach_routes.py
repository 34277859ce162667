"""Choose which machines dial each other, and each machine's address and interface. Pure.

Machines are identified by their first node rank.
"""

import ipaddress
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..facts.network import Address, Interface
from ..hosts import Cluster
from .inventory import Answer, Machine, Reach, Route

NEIGHBOURS = 3  # number of hosts that dial each host except the first, which all dial

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

    Returns only those that the hosts file sets, if any. Otherwise excludes loopback, link-local,
    container bridges, and addresses that another machine has too.
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

    def is_useful(address: Address) -> bool:
        ip = ipaddress.ip_address(address.ip)
        if ip.is_loopback or ip.is_link_local or ip.is_unspecified or address.ip in elsewhere:
            return False
        chosen = address.interface in wanted
        return chosen if wanted else not _LOCAL_ONLY.fullmatch(address.interface)

    def preference(address: Address) -> tuple[bool, int, bool, bool]:
        """Bridges last; then fast interfaces, the SSH address and IPv4 first."""
        nic = machine.facts.interface(address.interface) or Interface("", 0, "", 0, False)
        by_ssh = machine.facts.ssh_server_ip == address.ip
        return nic.is_bridge, -nic.speed, not by_ssh, ":" in address.ip

    return sorted(filter(is_useful, machine.facts.addresses), key=preference)


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
    a network stack do not dial each other.
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
    machines: Mapping[int, Machine], *, master_port: bool, everyone: bool = False
) -> list[Dial]:
    """Return a dial per pair and candidate address; with master_port, also to that port of node 0."""
    addresses = _candidates(machines)
    return [
        Dial(source, target, address.ip, is_master)
        for source, target in pairs(machines, everyone=everyone)
        for address in addresses[target]
        for is_master in ([False, True] if master_port and target == 0 else [False])
    ]


def is_settled(dials: Sequence[Dial], answers: Answers) -> bool:
    """Return whether every target has an address at which all its dials succeeded."""
    failed = {(d.target, d.address) for d in dials if d not in answers or not answers[d].ok}
    reached = {d.target for d in dials if (d.target, d.address) not in failed}
    return reached == {d.target for d in dials}


def confirmed(
    answers: Answers, dial_all: Callable[[Sequence[Dial]], Answers]
) -> dict[Dial, Answer]:
    """Repeat the dials that timed out, and one successful dial of each source. Return all answers.

    A timeout counts only if the dial fails again while its source's other one succeeds. A source
    that reached nobody has no other one, and its timeouts count.
    """
    failed = [dial for dial, answer in answers.items() if answer.result == "timeout"]
    sources = {dial.source for dial in failed}
    controls = {d.source: d for d, answer in answers.items() if answer.ok and d.source in sources}
    again = dial_all([*failed, *controls.values()])
    busy = {source for source, dial in controls.items() if not again[dial].ok}
    merged = dict(answers)
    for dial in failed:
        merged[dial] = again[dial]
        if again[dial].ok:
            merged[dial] = Answer("ok", answers[dial].seconds + again[dial].seconds)
        elif dial.source in busy:
            merged[dial] = Answer("silent")
    return merged


def cut_off(answers: Answers) -> set[int]:
    """Return machines that reached none of several targets, all of which others reached."""
    reached = {dial.target for dial, answer in answers.items() if answer.ok}
    spoke = {dial.source for dial, answer in answers.items() if answer.result in ("ok", "silent")}
    targets: dict[int, set[int]] = {}
    for dial in answers:
        targets.setdefault(dial.source, set()).add(dial.target)
    return {s for s, to in targets.items() if s not in spoke and len(to) > 1 and to <= reached}


def reach_of(machines: Mapping[int, Machine], seen: Iterable[int], answers: Answers) -> Reach:
    """Evaluate the answers. machines: those with an agent, among all in `seen`.

    Chooses the best address of each machine that all machines dialling it reached.
    """
    lost = cut_off(answers)
    kept: dict[tuple[int, str, bool], dict[int, Answer]] = {}
    for dial, answer in answers.items():
        if dial.source not in lost:
            dialled = (dial.target, dial.address, dial.is_master_port)
            kept.setdefault(dialled, {})[dial.source] = answer
    routes = {
        rank: _route(
            machines[rank], [(a, kept.get((rank, a.ip, False), {}).values()) for a in addresses]
        )
        for rank, addresses in _candidates(machines).items()
    }
    return Reach(kept, routes, frozenset(lost), frozenset(seen) - machines.keys())


def _route(machine: Machine, tried: Iterable[tuple[Address, Collection[Answer]]]) -> Route:
    passed: list[str] = []
    for address, answers in tried:
        if answers and all(answer.ok for answer in answers):
            given = any(host.internal_ip == address.ip for host in machine.hosts)
            count = len(answers)
            why = "set as internal_ip" if given else f"reached from {count} of {count}"
            why += f", not over {', '.join(passed)}" if passed else ""
            return Route(address.ip, address.interface or None, why)
        passed.append(address.interface)
    return Route(why="no address can be reached from every other host")


def addressed(
    cluster: Cluster, machines: Iterable[Machine], routes: Mapping[int, Route]
) -> Cluster:
    """Return the cluster with the routes as internal_ip and interface, unless the hosts file sets them."""
    hosts = list(cluster.hosts)
    for machine in machines:
        route = routes.get(machine.rank, Route())
        for rank in machine.ranks if route.address else ():
            ip, interface = hosts[rank].internal_ip, hosts[rank].interface
            hosts[rank] = replace(
                hosts[rank],
                internal_ip=ip or route.address,
                interface=interface or route.interface,
            )
    return replace(cluster, hosts=tuple(hosts))
