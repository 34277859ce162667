"""Which address and interface each machine is reached by: the choice, from what the probe met."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from launcher.facts.network import Address
from launcher.hosts import Cluster, Host
from launcher.preflight.findings import Finding, failure, warning
from launcher.preflight.machine import Machine, common
from launcher.preflight.reach_agent import Dial

# Bridges and tunnels of container engines and hypervisors; never a way to another host.
_DECOY = re.compile(
    r"docker\d*|br-[0-9a-f]{6,}|veth.*|virbr\d+.*|lxcbr\d+|cni.*|podman\d*|flannel.*"
)

WHY = {
    "timeout": "timed out",
    "refused": "was refused",
    "unreachable": "has no route",
    "wrong": "was answered by another machine",
    "silent": "was not told of in time",
}


@dataclass(frozen=True)
class Route:
    """address: None when no address of the machine is reached by all others."""

    address: str | None
    interface: str | None
    why: str


Answers = Mapping[Dial, str]


def candidates(machine: Machine, others: Sequence[Machine]) -> list[Address]:
    """Addresses that the others may reach this machine by, the most wanted first.

    Never loopback, link-local or a container bridge, nor one that another machine has as well.
    """
    facts = machine.facts
    if facts is None:
        return []
    others = [other for other in others if not other.shares_network_with(machine)]
    given = {host.internal_ip for host in machine.hosts if host.internal_ip}
    wanted = {host.interface for host in machine.hosts if host.interface}
    known = {address.ip: address for address in facts.addresses}
    if given:
        return [known.get(ip, Address(ip, "")) for ip in sorted(given)]
    elsewhere = {a.ip for other in others if other.facts for a in other.facts.addresses}
    found = [
        address
        for address in facts.addresses
        if not _is_useless(address.ip)
        and address.ip not in elsewhere
        and (address.interface in wanted or not (wanted or is_decoy(machine, address.interface)))
    ]
    return sorted(found, key=lambda address: _preference(machine, address))


def is_decoy(machine: Machine, interface: str) -> bool:
    return _DECOY.fullmatch(interface) is not None


def dials_for(machines: Sequence[Machine], master_port: bool) -> list[Dial]:
    """Everything to try. master_port: node 0 listens on it, so it is tried as well."""
    dials = []
    for t, target in enumerate(machines):
        for address in candidates(target, machines):
            for s, source in enumerate(machines):
                if source.facts is None or source.shares_network_with(target):
                    continue
                dials.append(Dial(s, t, address.ip))
                if master_port and 0 in target.ranks:
                    dials.append(Dial(s, t, address.ip, is_master_port=True))
    return dials


def choose(machines: Sequence[Machine], answers: Answers) -> list[Route]:
    """For each machine the most wanted address that every other machine reaches."""
    return [_route(machines, t, answers) for t in range(len(machines))]


def _route(machines: Sequence[Machine], t: int, answers: Answers) -> Route:
    target = machines[t]
    tried = candidates(target, machines)
    for address in tried:
        results = [r for d, r in answers.items() if d.target == t and d.address == address.ip
                   and not d.is_master_port]  # fmt: skip
        if results and all(result == "ok" for result in results):
            given = any(host.internal_ip == address.ip for host in target.hosts)
            why = (
                "given as internal_ip"
                if given
                else f"reached from {len(results)} of {len(results)}"
            )
            passed = [a.interface for a in tried[: tried.index(address)]]
            why += f", {', '.join(passed)} not" if passed else ""
            return Route(address.ip, address.interface or None, why)
    return Route(None, None, "no address is reached from every other host")


def addressed(cluster: Cluster, machines: Sequence[Machine], routes: Sequence[Route]) -> Cluster:
    """The cluster with what was found out as internal_ip and interface; what was said stays."""
    hosts: list[Host] = list(cluster.hosts)
    for machine, route in zip(machines, routes, strict=True):
        for rank in machine.ranks:
            host = hosts[rank]
            hosts[rank] = replace(
                host,
                internal_ip=host.internal_ip or route.address,
                interface=host.interface or (route.interface if route.address else None),
            )
    return replace(cluster, hosts=tuple(hosts))


# Findings


def check_routes(
    machines: Sequence[Machine], answers: Answers, routes: Sequence[Route], port: int | str
) -> list[Finding]:
    found: list[Finding] = []
    for t, (machine, route) in enumerate(zip(machines, routes, strict=True)):
        if route.address is None:
            found += _unreached(machines, t, answers)
        elif not _reached_master(t, route, answers):
            sources, why = _failed(machines, t, route.address, answers, master=True)
            what = f"port {port} on {route.address} {why} from {sources}"
            remedy = f"open TCP port {port} in its firewall, or set another job.master_port"
            found.append(failure(machine.name, "ports", what, remedy))
    return found


def _unreached(machines: Sequence[Machine], t: int, answers: Answers) -> list[Finding]:
    machine = machines[t]
    others = [m for m in machines if m.facts is not None and not m.shares_network_with(machine)]
    tried = candidates(machine, machines)
    if machine.facts is None or not others:
        return []
    if not tried:
        named = next((host.interface for host in machine.hosts if host.interface), None)
        if named and machine.details and machine.details.interface(named) is None:
            return []  # check_interfaces has said it
        what = f"{f'interface {named}' if named else 'it'} has no address that others could reach"
        return [failure(machine.name, "network", what, "set internal_ip in the hosts file")]
    best = max(tried, key=lambda a: _count_ok(t, a.ip, answers))
    if not any(dial.target == t for dial in answers):
        return []
    sources, why = _failed(machines, t, best.ip, answers, master=False)
    if why == WHY["silent"]:
        what = f"a connection to {best.ip} {why} by {sources}"
        return [warning(machine.name, "network", what, "the hosts are very busy: check again")]
    given = any(host.internal_ip for host in machine.hosts)
    owner = next((m.name for m in others if _carries(m, best.ip)), None)
    if owner is not None:
        what = f"internal_ip {best.ip} is an address of {owner}"
        return [failure(machine.name, "network", what, "correct internal_ip in the hosts file")]
    passing = _passing(machines, t, best.ip, answers)
    if passing is not None:
        what = f"a connection to {best.ip} {why} from {sources}, on its way through {passing.name}"
        remedy = f"let {passing.name} forward it (`sysctl net.ipv4.ip_forward=1`"
        if passing.docker is not None:
            remedy += "; Docker's iptables rules drop it: `iptables -I DOCKER-USER -j ACCEPT`"
        remedy += "), or mend the route"
        return [failure(machine.name, "network", what, remedy)]
    firewall = next(iter(machine.details.firewalls), "") if machine.details else ""
    hint = f" ({firewall} is installed there)" if firewall else ""
    remedy = f"allow all TCP between the hosts in its firewall{hint}"
    remedy += ", or correct internal_ip" if given else ", or set internal_ip"
    what = f"a connection to {best.ip} {why} from {sources}"
    return [failure(machine.name, "network", what, remedy)]


def _passing(machines: Sequence[Machine], t: int, ip: str, answers: Answers) -> Machine | None:
    """The machine that was to forward what did not arrive, or the answer.

    Docker makes a host drop what it only passes on; what is for the host itself, as all of ddpctl's
    is, its rules leave alone.
    """
    for dial, result in answers.items():
        if (dial.target, dial.address) != (t, ip) or result == "ok":
            continue
        source, target = machines[dial.source], machines[t]
        back = [(target, address.ip) for address in candidates(source, machines)]
        for machine, to in [(source, ip), *back]:
            via = machine.details.gateway_to(to) if machine.details else None
            for other in machines:
                if via and other not in (source, target) and _carries(other, via):
                    return other
    return None


def _carries(machine: Machine, ip: str) -> bool:
    return machine.facts is not None and machine.facts.interface_of(ip) is not None


def _count_ok(t: int, ip: str, answers: Answers) -> int:
    return sum(r == "ok" and d.target == t and d.address == ip for d, r in answers.items())


def _reached_master(t: int, route: Route, answers: Answers) -> bool:
    return all(
        result in ("ok", "silent")
        for dial, result in answers.items()
        if dial.is_master_port and dial.target == t and dial.address == route.address
    )


def _failed(
    machines: Sequence[Machine], t: int, ip: str, answers: Answers, *, master: bool
) -> tuple[str, str]:
    """The machines from which it fails, and how (the most frequent way)."""
    bad = [
        (machines[d.source].name, r)
        for d, r in answers.items()
        if d.target == t and d.address == ip and d.is_master_port == master and r != "ok"
    ]
    names = [name for name, _ in bad]
    how = common([result for _, result in bad]) if bad else "timeout"
    return ", ".join(dict.fromkeys(names)), WHY.get(how, how)


def check_interfaces(machine: Machine, *, alone: bool) -> list[Finding]:
    """What the hosts file says of the network is there, and names mean what they should."""
    facts, details = machine.facts, machine.details
    if facts is None or details is None:
        return []
    found = []
    for host in machine.hosts:
        nic = details.interface(host.interface) if host.interface else None
        names = ", ".join(i.name for i in details.interfaces if i.name != "lo")
        if host.interface and details.interfaces and nic is None:
            what = f"interface {host.interface} does not exist; the host has {names}"
            found.append(
                failure(machine.name, "network", what, "correct interface: in the hosts file")
            )
        elif nic is not None and nic.state == "down":
            what = f"interface {nic.name} is down"
            remedy = f"ip link set {nic.name} up there, or choose another of {names}"
            found.append(failure(machine.name, "network", what, remedy))
    if not alone and details.resolved and details.resolved.startswith("127."):
        what = f"its own name {facts.hostname} stands for {details.resolved} there"
        remedy = "map it to the host's address in /etc/hosts (ddpctl itself passes addresses)"
        found.append(warning(machine.name, "network", what, remedy))
    return found


def check_mtus(machines: Sequence[Machine], routes: Sequence[Route]) -> list[Finding]:
    """The chosen interfaces carry packets of one size; a difference can hang large messages."""
    sizes = []
    for machine, route in zip(machines, routes, strict=True):
        nic = (
            machine.details.interface(route.interface)
            if machine.details and route.interface
            else None
        )
        if nic is not None and nic.name != "lo":
            sizes.append((machine, nic))
    if len({nic.mtu for _, nic in sizes}) < 2:
        return []
    usual = common([nic.mtu for _, nic in sizes])
    return [
        warning(
            machine.name,
            "network",
            f"MTU {nic.mtu} on {nic.name}, and other hosts have {usual}",
            f"ip link set {nic.name} mtu {usual} there, or the same on all",
        )
        for machine, nic in sizes
        if nic.mtu != usual
    ]


def _is_useless(ip: str) -> bool:
    address = ipaddress.ip_address(ip)
    return address.is_loopback or address.is_link_local or address.is_unspecified


def _preference(machine: Machine, address: Address) -> tuple[int, int, int, int]:
    """Fast interfaces first, then the address that SSH came by, IPv4 before IPv6."""
    nic = machine.details.interface(address.interface) if machine.details else None
    by_ssh = machine.facts is not None and machine.facts.ssh_server_ip == address.ip
    is_bridge = nic is not None and nic.is_bridge
    return (is_bridge, -(nic.speed if nic else 0), not by_ssh, ":" in address.ip)
