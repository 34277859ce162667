"""Choose the address and network interface that each node uses for traffic between nodes. Pure.

1. `internal_ip` and `interface` in the hosts file decide.
2. Otherwise, the best address is the one with the fastest path from all nodes, judged by the routes
   and interface speeds that the hosts report.
3. If the checks ran, addresses that a host could not connect to are left out.

So the choice is the same without the checks, unless an address turns out not to work.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from ..errors import UsageError
from ..facts.facts import Facts
from ..facts.network import Address
from ..hosts import Host

# Bridges and tunnels of container engines and hypervisors, which do not lead to other hosts.
_LOCAL_ONLY = re.compile(
    r"docker\d*|br-[0-9a-f]{6,}|veth.*|virbr\d+.*|lxcbr\d+|cni.*|podman\d*|flannel.*|cilium_.*"
)


def node_addresses(
    hosts: Sequence[Host], facts: Sequence[Facts], unreached: Collection[str] = ()
) -> tuple[Address, ...]:
    """Return each node's address and interface, in rank order. The interface is "" if unknown.

    The address is the first candidate that is not in `unreached`, else the first candidate. Without
    candidates, it is the host's end of the SSH connection. unreached: addresses that a host could
    not connect to; empty if the checks did not run.
    """

    def choose(host: Host, own: Facts, listed: Sequence[Address]) -> Address:
        if not listed:
            listed = [_ssh_address(host, own, facts)]
        best = next((a for a in listed if a.ip not in unreached), listed[0])
        return Address(best.ip, host.interface or best.interface, best.network)

    return tuple(map(choose, hosts, facts, candidates(hosts, facts)))


def addresses_in_file(hosts: Sequence[Host]) -> tuple[Address, ...]:
    """Return each node's address and interface from the hosts file; "" for what it does not set."""
    default = "127.0.0.1" if all(host.is_local for host in hosts) else ""
    return tuple(Address(host.internal_ip or default, host.interface or "") for host in hosts)


def candidates(hosts: Sequence[Host], facts: Sequence[Facts]) -> list[list[Address]]:
    """Return, for each node, the addresses at which the other nodes may reach it, best first.

    Omits loopback, link-local and container networks, interfaces that are down, and addresses that
    exist on several hosts.
    """
    repeated = _on_several_hosts(hosts, facts)
    tables = {_ways(own) for own in facts}  # hosts with equal tables count once

    def listed(host: Host, own: Facts) -> list[Address]:
        known = {address.ip: address for address in own.addresses}
        if host.internal_ip:
            return [known.get(host.internal_ip, Address(host.internal_ip, ""))]
        if all(other.is_local for other in hosts):
            return [known.get("127.0.0.1", Address("127.0.0.1", "lo"))]
        unique = [address for address in own.addresses if address.ip not in repeated]
        useful = [address for address in unique if _leads_to_hosts(address, host, own)]
        ssh = _ssh_address(host, own, facts)
        return sorted(useful, key=lambda a: (*_path_cost(a, own, tables), a != ssh, ":" in a.ip))

    return list(map(listed, hosts, facts))


def refuse_loopback(hosts: Sequence[Host], addresses: Sequence[Address]) -> None:
    """Raise UsageError if some nodes, but not all, have a loopback address."""
    loopback = [a.ip.startswith("127.") or a.ip == "::1" for a in addresses]
    if any(loopback) and not all(loopback):
        rank = loopback.index(True)
        what = f"node {rank} is reached at {addresses[rank].ip}, which the other nodes cannot use"
        raise UsageError(what, "set its `internal_ip:` in the hosts file", host=hosts[rank].name)


@dataclass(frozen=True)
class _Way:
    """A row of a host's routing table. mbits: the interface's speed in Mbit/s; 0 if unknown."""

    network: IPv4Network | IPv6Network
    is_direct: bool
    mbits: int


def _ways(own: Facts) -> tuple[_Way, ...]:
    """Return a host's routes, most specific first. For IPv6, returns only attached networks."""
    speed = {nic.name: nic.speed for nic in own.interfaces}
    ipv6 = [a for a in own.addresses if ":" in a.network]
    return (
        *(_Way(r.network, not r.gateway, speed.get(r.interface, 0)) for r in own.routes),
        *(_Way(ip_network(a.network), True, speed.get(a.interface, 0)) for a in ipv6),
    )


def _path_cost(
    address: Address, own: Facts, tables: Collection[Sequence[_Way]]
) -> tuple[bool, bool, int, bool, bool]:
    """Return the cost of the paths from all hosts to this address, as a sort key: smallest is best.

    The criteria, in this order: whether some host has no route to it; whether it is on a bridge;
    the speed of its slowest link; whether some host needs a router to reach it; whether it belongs
    to no network, like the address of a tunnel such as Tailscale. A link of unknown speed counts as
    the slowest if it is the address's own or leads to a router; otherwise, it is ignored.
    """
    ip = ip_address(address.ip)
    nic = own.interface(address.interface)
    paths = [next((way for way in ways if ip in way.network), None) for ways in tables]
    speeds = [way.mbits for way in paths if way and (way.mbits or not way.is_direct)]
    slowest = min([nic.speed if nic else 0, *speeds])
    is_routed = not all(way.is_direct for way in paths if way)
    is_bridge = nic is not None and nic.kind == "bridge"
    return None in paths, is_bridge, -slowest, is_routed, not address.network


def _leads_to_hosts(address: Address, host: Host, own: Facts) -> bool:
    """Return whether other hosts may reach the address, judging by its interface."""
    ip: IPv4Address | IPv6Address = ip_address(address.ip)
    if ip.is_loopback or ip.is_link_local or ip.is_unspecified:
        return False
    if host.interface:
        return address.interface == host.interface
    nic = own.interface(address.interface)
    return not (_LOCAL_ONLY.fullmatch(address.interface) or (nic and nic.state == "down"))


def _on_several_hosts(hosts: Sequence[Host], facts: Sequence[Facts]) -> set[str]:
    """Return the addresses that several hosts have, as is common for bridges such as docker0."""
    stacks: dict[str, set[object]] = {}
    for host, own in zip(hosts, facts, strict=True):
        for address in own.addresses:
            stacks.setdefault(address.ip, set()).add(own.network_stack or host.machine)
    return {ip for ip, on in stacks.items() if len(on) > 1}


def _ssh_address(host: Host, own: Facts, facts: Sequence[Facts]) -> Address:
    """Return the host's end of its SSH connection; for `local`, the address that other hosts see.

    The host's end is its own address even behind a jump host or a forwarded port.
    """
    seen_from = next((other.ssh_client_ip for other in facts if other.ssh_client_ip), None)
    ip = (seen_from if host.is_local else own.ssh_server_ip) or host.name
    return next((address for address in own.addresses if address.ip == ip), Address(ip, ""))
