"""Check that hosts reach each other, quickly, on interfaces that exist and are alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..hosts.fold import names
from .findings import Finding, failure, warning
from .inventory import Answer, Inventory, Machine, common, odd_one_out
from .reach_routes import candidates

SLOW = 1.0  # seconds until a peer answers; TCP sends its first packet again after one second

HOW = {
    "timeout": "timed out",
    "refused": "was refused",
    "unreachable": "found no route",
    "wrong": "was answered by another machine",
    "silent": "was not reported in time",
}


def check_interfaces(machine: Machine, _: Inventory) -> Iterator[Finding]:
    """Check that the interfaces in the hosts file exist and are up."""
    details = machine.details
    there = ", ".join(i.name for i in details.interfaces if i.name != "lo")
    for name in dict.fromkeys(host.interface for host in machine.hosts if host.interface):
        nic = details.interface(name)
        if nic is None and details.interfaces:
            what = f"interface {name} does not exist; the host has {there}"
            yield failure(machine.name, "network", what, "correct interface: in the hosts file")
        elif nic is not None and nic.state == "down":
            what = f"interface {name} is down"
            remedy = f"run `ip link set {name} up` there, or choose another of {there}"
            yield failure(machine.name, "network", what, remedy)


def check_own_name(machine: Machine, seen: Inventory) -> Iterator[Finding]:
    resolved = machine.details.resolved or ""
    if resolved.startswith("127.") and len(seen.machines) > 1:
        what = f"its own name {machine.facts.hostname} resolves to {resolved} there"
        remedy = "map it to the host's address in /etc/hosts (ddpctl itself passes addresses)"
        yield warning(machine.name, "network", what, remedy)


def check_mtu(machine: Machine, seen: Inventory) -> Iterator[Finding]:
    """Check that the chosen interfaces have one MTU. Otherwise large messages can hang."""

    def mtu(m: Machine) -> int | None:
        nic = m.details.interface(seen.route(m).interface or "")
        return nic.mtu if nic and nic.name != "lo" else None

    if odd := odd_one_out(machine, seen.machines, mtu):
        name = seen.route(machine).interface
        what = f"MTU {odd[0]} on {name}, while other hosts have {odd[1]}"
        remedy = f"run `ip link set {name} mtu {odd[1]}` there, or set the same MTU on all hosts"
        yield warning(machine.name, "network", what, remedy)


def check_rdma(machine: Machine, seen: Inventory) -> Iterator[Finding]:
    """Check that InfiniBand and RoCE ports match other hosts' in number, rate and GID type."""

    def up(m: Machine) -> int:
        return sum(port.is_up for port in m.facts.rdma_ports)

    def rates(m: Machine) -> tuple[int, ...] | None:
        return tuple(sorted({port.gbits for port in m.facts.rdma_ports if port.is_up})) or None

    def gid_type(m: Machine) -> str | None:
        address = seen.route(m).address or ""
        found = (port.gid_of(address) for port in m.facts.rdma_ports if port.is_up)
        return next((gid.type for gid in found if gid), None)

    def warn(what: str, remedy: str) -> Finding:
        return warning(machine.name, "network", what, remedy)

    ports, most = machine.facts.rdma_ports, max(up(other) for other in seen.machines)
    if ports and up(machine) < most:
        down = ", ".join(f"{port.name} {port.state}" for port in ports if not port.is_up)
        what = f"RDMA ports up: {up(machine)}, while other hosts have {most}"
        yield warn(what + (f" ({down})" if down else ""), "check the cables and `rdma link` there")
    if speeds := odd_one_out(machine, seen.machines, rates):
        own, usual = ("/".join(map(str, speed)) for speed in speeds)
        what = f"RDMA ports at {own} Gb/s, while other hosts have {usual}"
        yield warn(what, "check the cables and the switch ports; the slowest sets the pace")
    if types := odd_one_out(machine, seen.machines, gid_type):
        what = f"the address in use has a GID of {types[0]}, while other hosts have {types[1]}"
        yield warn(what, "set the same RoCE version on all hosts (`cma_roce_mode`)")


def check_probed(machine: Machine, seen: Inventory) -> Iterator[Finding]:
    if machine.rank in seen.reach.unprobed and not machine.engine_error:
        what = "cannot test whether others reach it: it has neither python3 nor the job's image"
        remedy = "run `ddpctl push HOSTS --image` first, or install python3 there"
        yield warning(machine.name, "network", what, remedy)
    if machine.rank in seen.reach.cut_off:
        what = "it cannot connect to any other host, although the others can reach each other"
        remedy = "allow outgoing TCP in its firewall, and check its routes"
        yield failure(machine.name, "network", what, remedy)


def check_reached(machine: Machine, seen: Inventory) -> Iterator[Finding]:
    """Check that all other hosts reach an address of the machine, and node 0's master port."""
    address, port = seen.route(machine).address, seen.cluster.job.master_port
    if address is None:
        yield from _unreached(machine, seen)
        return
    answers, master = seen.answers(machine, address), seen.answers(machine, address, master=True)
    refused = {source: a for source, a in master.items() if not a.ok and a.result != "silent"}
    if refused:
        what = f"port {port} on {address} {_how(refused)} {_sources(refused, master, seen)}"
        remedy = f"open TCP port {port} in its firewall, or set another job.master_port"
        yield failure(machine.name, "ports", what, remedy)
    slow = {source: answer for source, answer in answers.items() if answer.seconds >= SLOW}
    if slow:
        worst = max(answer.seconds for answer in slow.values())
        what = f"a connection to {address} took {worst:.1f} s {_sources(slow, answers, seen)}"
        yield warning(machine.name, "network", what, "check the load on the host and its network")


def _unreached(machine: Machine, seen: Inventory) -> Iterator[Finding]:
    others = [m for m in seen.machines if not m.shares_network_with(machine)]
    tried = [address.ip for address in candidates(machine, seen.machines)]
    named = next((host.interface for host in machine.hosts if host.interface), None)
    given = any(host.internal_ip for host in machine.hosts)
    if not others:
        return
    if not tried:
        if named and machine.details.interfaces and not machine.details.interface(named):
            return  # reported by check_interfaces
        where = f"interface {named}" if named else "the host"
        what = f"{where} has no address that other hosts could reach"
        yield failure(machine.name, "network", what, "set internal_ip in the hosts file")
        return
    best = max(tried, key=lambda ip: sum(a.ok for a in seen.answers(machine, ip).values()))
    answers = seen.answers(machine, best)
    silent = {source: answer for source, answer in answers.items() if answer.result == "silent"}
    bad = {
        s: answer for s, answer in answers.items() if not answer.ok and s not in silent
    } or silent
    if not bad:
        return  # the probe did not run there
    what = f"a connection to {best} {_how(bad)} {_sources(bad, answers, seen)}"
    if bad is silent:
        remedy = "the hosts are very busy: run the check again"
        yield warning(machine.name, "network", what, remedy)
    elif owner := next((other for other in others if other.has_address(best)), None):
        what = f"internal_ip {best} is an address of {owner.name}"
        yield failure(machine.name, "network", what, "correct internal_ip in the hosts file")
    elif router := _router(machine, best, bad, seen):
        remedy = f"let {router.name} forward it (`sysctl net.ipv4.ip_forward=1`"
        if router.in_containers:
            remedy += "; Docker's iptables rules drop it: `iptables -I DOCKER-USER -j ACCEPT`"
        what += f", on its way through {router.name}"
        yield failure(machine.name, "network", what, f"{remedy}), or fix the route")
    else:
        firewall = next((f" ({name} is installed there)" for name in machine.details.firewalls), "")
        remedy = f"allow all TCP between the hosts in its firewall{firewall}, or "
        remedy += "correct internal_ip" if given else "set internal_ip"
        yield failure(machine.name, "network", what, remedy)


def _router(
    machine: Machine, ip: str, bad: Mapping[int, Answer], seen: Inventory
) -> Machine | None:
    """Return the machine of the cluster that probably dropped the packets that it should forward.

    Docker makes a host drop forwarded packets of others. Traffic to the host itself, such as all of
    ddpctl's, is not affected.
    """
    for source in (m for m in seen.machines if m.rank in bad):
        hops = [source.details.gateway_to(ip)]
        hops += [machine.details.gateway_to(a.ip) for a in candidates(source, seen.machines)]
        for via in filter(None, hops):
            for other in seen.machines:
                if other not in (source, machine) and other.has_address(via):
                    return other
    return None


def _how(bad: Mapping[int, Answer]) -> str:
    return HOW[common([answer.result for answer in bad.values()])]


def _sources(some: Mapping[int, Answer], tried: Mapping[int, Answer], seen: Inventory) -> str:
    """Describe the sources: `from 34 of 47 hosts (gpu[14-47])`."""
    named = names(m.name for m in seen.machines if m.rank in some)
    return f"from {len(some)} of {len(tried)} hosts ({named})"


CHECKS = (check_interfaces, check_own_name, check_mtu, check_rdma, check_probed, check_reached)
