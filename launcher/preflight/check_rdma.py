"""Check the ports of the fast network between the hosts: InfiniBand, RoCE and fast Ethernet."""

import ipaddress
import itertools
import json
from collections.abc import Iterator, Sequence

from ..facts.network import Interface
from .findings import Finding, warning
from .fleet import Fleet, different, odd_one_out
from .machine import Machine

FAST = 10_000  # Mbit/s
MOST_LINES = 4  # maximum number of ports in one remedy
NETPLAN = "/etc/netplan/60-ddpctl.yaml"
CHOSEN_BY_USER = {"NCCL_IB_HCA", "NCCL_IB_DISABLE"}  # if set, NCCL may use other ports


def check_rdma(machine: Machine, fleet: Fleet) -> Iterator[Finding]:
    """Check that RDMA ports work, and that their number, rates and GID type are equal on all hosts."""

    def up(m: Machine) -> int:
        return sum(port.is_up for port in m.facts.rdma_ports)

    def rates(m: Machine) -> str | None:
        speeds = {port.gbits for port in m.facts.rdma_ports if port.is_up}
        return "/".join(map(str, sorted(speeds))) or None

    def gid_type(m: Machine) -> str | None:
        ip = fleet.addresses[m.rank].ip
        gids = (port.gid_of(ip) for port in m.facts.rdma_ports if port.is_up)
        return next((gid.type for gid in gids if gid), None)

    ports, most = machine.facts.rdma_ports, max(up(other) for other in fleet.machines)
    down = ", ".join(f"{port.name} {port.state}" for port in ports if not port.is_up)
    if ports and "uverbs0" not in machine.facts.infiniband:
        what = "it has InfiniBand or RoCE but no /dev/infiniband/uverbs0: NCCL will use TCP"
        yield warning(what, "load ib_uverbs on that host (package rdma-core)")
    if ports and not up(machine):
        what = f"no InfiniBand or RoCE port is active ({down}): NCCL will use TCP"
        yield warning(what, "check the cable, the switch and the subnet manager")
    if ports and up(machine) < most:
        what = f"RDMA ports up: {up(machine)}, while other hosts have {most}"
        what += f" ({down})" if down else ""
        yield warning(what, "check the cables, and `rdma link` on that host")
    what = "its RDMA ports run at {} Gb/s, while those of other hosts run at {}"
    remedy = "check the cables and the switch ports; the slowest port sets the pace"
    yield from different(machine, fleet, rates, what, remedy)
    what = "the GID of its address is of type {}, while other hosts have {}"
    remedy = "set the same RoCE version on all hosts (`cma_roce_mode`)"
    yield from different(machine, fleet, gid_type, what, remedy)


def check_rails(machine: Machine, fleet: Fleet) -> Iterator[Finding]:
    """Check that each RoCE port can be reached from another host, and that no rails are crossed."""
    env, facts = fleet.cluster.job.env, machine.facts
    if not CHOSEN_BY_USER.isdisjoint(env):
        return
    chosen = facts.roce_settings(fleet.addresses[machine.rank].ip, env).get("NCCL_IB_HCA", "")
    names = {gid.ip: port.name for port in facts.roce_ports for gid in port.gids}
    used = chosen.lstrip("=").split(",") if chosen else names.values()
    for ip, name in names.items():
        failed = [source for source, result in fleet.dialed(machine, ip).items() if not result.ok]
        if name in used and failed:
            source = next(m.name for m in fleet.machines if m.rank in failed)
            what = f"{source} cannot reach RoCE port {name} at {ip}: NCCL will fail or hang"
            remedy = "check the cable, switch and routes, or set NCCL_IB_HCA to the connected ports"
            yield warning(what, remedy)

    def rails(m: Machine) -> tuple[tuple[str, str], ...] | None:
        pairs = {(p.name, m.facts.network_of(g.ip)) for p in m.facts.roce_ports for g in p.gids}
        return tuple(sorted(pair for pair in pairs if pair[1])) or None

    if odd := odd_one_out(machine, fleet, rails):
        mine, usual = map(dict, odd)
        crossed = [name for name in mine if usual.get(name, mine[name]) != mine[name]]
        if crossed and set(mine.values()) == set(usual.values()):
            network = mine[crossed[0]]
            what = (
                f"{crossed[0]} is on {network}, while on other hosts it is on {usual[crossed[0]]}"
            )
            yield warning(f"the rails are crossed: {what}", "swap the cables or the addresses")


def check_fast_ports(machine: Machine, fleet: Fleet) -> Iterator[Finding]:
    """Check that ports at least as fast as the one in use have addresses. Suggest a netplan file."""
    ports = _without_address(machine, fleet)
    if not ports:
        return
    used = machine.facts.interface(fleet.addresses[machine.rank].interface)
    linklocal = [r.interface for r in machine.facts.routes if r.network.is_link_local]
    some = " and ".join(f"{p.name} ({p.speed // 1000} Gb/s)" for p in ports[:MOST_LINES])
    only = all(port.name in linklocal for port in ports)
    what = f"{some} {'have' if len(ports) > 1 else 'has'} {'only a link-local' if only else 'no'} address"
    if used and used.speed < ports[0].speed:
        what += f", so the run uses {used.name} ({used.speed / 1000:g} Gb/s)"
    elif used:
        what += f", so NCCL cannot use {'them' if len(ports) > 1 else 'it'} alongside {used.name}"
    addresses = _addresses_for(ports[:MOST_LINES], machine, fleet)
    ethernets = {name: {"addresses": [address]} for name, address in addresses.items()}
    lines = json.dumps({"network": {"version": 2, "ethernets": ethernets}}).replace('"', "")
    yield warning(what, f"on that host, write `{lines}` to {NETPLAN} and run `sudo netplan apply`")


def _without_address(machine: Machine, fleet: Fleet) -> list[Interface]:
    """Return the unused FAST ports that are up and no faster than some port of another host.

    Each is faster than the port in use, or at least as fast if both are RoCE ports.
    """
    facts, hosts = machine.facts, machine.hosts
    used = facts.interface(fleet.addresses[machine.rank].interface)
    if used is None or any(p.is_up and not p.is_ethernet for p in facts.rdma_ports):
        return []  # InfiniBand needs no addresses
    by_user = any(host.interface or host.internal_ip for host in hosts)
    roce = {port.interface for port in facts.rdma_ports if port.is_up}
    attached = {r.interface for r in facts.routes if not r.network.is_link_local and not r.gateway}
    attached |= {address.interface for address in facts.addresses if ":" in address.ip}
    speeds = [
        nic.speed
        for other in fleet.machines
        if not other.shares_network_with(machine)
        for nic in other.facts.interfaces
        if nic.kind == "ethernet" and nic.state == "up"
    ]
    return [
        nic
        for nic in facts.interfaces
        if nic.kind == "ethernet" and nic.state == "up" and nic.name not in attached
        if nic.speed >= FAST and any(speed >= nic.speed for speed in speeds)
        if (nic.speed > used.speed > 0 and not by_user)
        or (nic.speed >= used.speed and {nic.name, used.name} <= roce)
    ]


def _addresses_for(ports: Sequence[Interface], machine: Machine, fleet: Fleet) -> dict[str, str]:
    """Return an address for each port: in the network that it has on other hosts, or else in a new one."""
    taken = [r.network for m in fleet.machines for r in m.facts.routes if r.network.prefixlen]
    new = (ipaddress.IPv4Network(f"192.168.{third}.0/24") for third in range(177, 256))
    free = (network for network in new if not any(network.overlaps(each) for each in taken))
    names = sorted({p.name for m in fleet.machines for p in _without_address(m, fleet)})
    networks = dict(zip(names, itertools.islice(free, len(names)), strict=False))
    for route in (r for m in fleet.machines for r in m.facts.routes if not r.gateway):
        if route.interface in networks and not route.network.is_link_local:
            networks[route.interface] = route.network
    used = {address.ip for m in fleet.machines for address in m.facts.addresses}

    def free_in(network: ipaddress.IPv4Network) -> str:
        hosts = [ip for ip in itertools.islice(network.hosts(), 1024) if str(ip) not in used]
        return f"{hosts[machine.rank % len(hosts)]}/{network.prefixlen}" if hosts else "..."

    return {port.name: free_in(networks[port.name]) for port in ports if port.name in networks}
