"""Check interfaces, the master port, and that hosts reach each other quickly."""

from collections.abc import Iterator, Mapping

from ..text import names, one_line
from .findings import Problem, failure, warning
from .fleet import Fleet, common, odd_one_out
from .machine import Machine
from .reach import DialResult

SLOW = 1.0  # seconds until a peer answers; TCP sends its first packet again after one second
LONGEST_COMMAND = 80  # characters shown; a command line may contain anything, including passwords

HOW = {
    "timeout": "timed out",
    "refused": "was refused",
    "unreachable": "found no route",
    "wrong": "was answered by another machine",
}


def check_interfaces(machine: Machine, fleet: Fleet) -> Iterator[Problem]:
    """Check the interfaces in the hosts file, the host's own name, and that all MTUs are equal.

    Large messages can hang between hosts with different MTUs.
    """
    details, facts = machine.details, machine.facts
    others = ", ".join(i.name for i in facts.interfaces if i.name != "lo")
    for name in dict.fromkeys(host.interface for host in machine.hosts if host.interface):
        nic = facts.interface(name)
        if nic is None and facts.interfaces:
            what = f"interface {name} does not exist; the host has {others}"
            yield failure(what, "correct interface: in the hosts file")
        elif nic is not None and nic.state == "down":
            remedy = f"run `ip link set {name} up` there, or choose another of {others}"
            yield failure(f"interface {name} is down", remedy)
    if (details.resolved or "").startswith("127.") and len(fleet.machines) > 1:
        what = f"its own name {facts.hostname} resolves to {details.resolved} there"
        remedy = "map it to the host's address in /etc/hosts (ddpctl itself uses addresses)"
        yield warning(what, remedy)

    def mtu(m: Machine) -> int | None:
        nic = m.facts.interface(fleet.addresses[m.rank].interface)
        return nic.mtu if nic and nic.name != "lo" else None

    if odd := odd_one_out(machine, fleet.machines, mtu):
        chosen = fleet.addresses[machine.rank].interface
        what = f"MTU {odd[0]} on {chosen}, while other hosts have {odd[1]}"
        remedy = f"run `ip link set {chosen} mtu {odd[1]}` there, or set the same MTU on all hosts"
        yield warning(what, remedy)


def check_rdma(machine: Machine, fleet: Fleet) -> Iterator[Problem]:
    """Check that RDMA ports work, and have the same number, rate and GID type as elsewhere."""

    def up(m: Machine) -> int:
        return sum(port.is_up for port in m.facts.rdma_ports)

    def rates(m: Machine) -> tuple[int, ...] | None:
        return tuple(sorted({port.gbits for port in m.facts.rdma_ports if port.is_up})) or None

    def gid_type(m: Machine) -> str | None:
        ip = fleet.addresses[m.rank].ip
        gids = (port.gid_of(ip) for port in m.facts.rdma_ports if port.is_up)
        return next((gid.type for gid in gids if gid), None)

    ports, most = machine.facts.rdma_ports, max(up(other) for other in fleet.machines)
    down = ", ".join(f"{port.name} {port.state}" for port in ports if not port.is_up)
    if ports and "uverbs0" not in machine.facts.infiniband:
        what = "InfiniBand or RoCE without /dev/infiniband/uverbs0: NCCL falls back to TCP"
        yield warning(what, "load ib_uverbs there (package rdma-core)")
    if ports and not up(machine):
        what = f"no InfiniBand port is active ({down}): NCCL falls back to TCP"
        yield warning(what, "check the cable, the switch and the subnet manager")
    if ports and up(machine) < most:
        what = f"RDMA ports up: {up(machine)}, while other hosts have {most}"
        what += f" ({down})" if down else ""
        yield warning(what, "check the cables and `rdma link` there")
    if speeds := odd_one_out(machine, fleet.machines, rates):
        own, usual = ("/".join(map(str, speed)) for speed in speeds)
        what = f"RDMA ports at {own} Gb/s, while other hosts have {usual}"
        yield warning(what, "check the cables and the switch ports; the slowest sets the pace")
    if types := odd_one_out(machine, fleet.machines, gid_type):
        what = f"the GID of the address in use is {types[0]}, while other hosts use {types[1]}"
        yield warning(what, "set the same RoCE version on all hosts (`cma_roce_mode`)")


def check_reached(machine: Machine, fleet: Fleet) -> Iterator[Problem]:
    """Check that the machine reaches the others, and that they reach its address."""
    reach, ip = fleet.reach, fleet.addresses[machine.rank].ip
    if machine.rank in reach.unprobed and not machine.engine_error:
        what = "cannot test whether others reach it: it has neither python3 nor the job's image"
        yield warning(what, "run `ddpctl push HOSTS --image` first, or install python3 there")
    if machine.rank in reach.unfinished:
        what = "it did not report in time which hosts it can connect to"
        yield warning(what, "run the check again when the host is less busy")
    if machine.rank in reach.cut_off:
        what = "it cannot connect to any other host, although the others can reach each other"
        yield failure(what, "allow outgoing TCP in its firewall, and check its routes")
    tried = fleet.dialed(machine, ip)
    if not fleet.to_dial[machine.rank]:
        yield from _without_address(machine, fleet)
    elif not all(result.ok for result in tried.values()):
        yield _unreached(machine, fleet)
    elif slow := {source: result for source, result in tried.items() if result.seconds >= SLOW}:
        worst = max(result.seconds for result in slow.values())
        what = f"a connection to {ip} took {worst:.1f} s {_sources(slow, tried, fleet)}"
        yield warning(what, "check the load on the host and its network")


def _without_address(machine: Machine, fleet: Fleet) -> Iterator[Problem]:
    named = next((host.interface for host in machine.hosts if host.interface), None)
    nic = machine.facts.interface(named) if named else None
    if named and machine.facts.interfaces and (nic is None or nic.state == "down"):
        return  # reported by check_interfaces
    if any(not other.shares_network_with(machine) for other in fleet.machines):
        what = f"interface {named}" if named else "the host"
        what += " has no address that other hosts could reach"
        yield failure(what, "set internal_ip in the hosts file")


def _unreached(machine: Machine, fleet: Fleet) -> Problem:
    """Return the problem of a machine with no address that all others reach: the best address's."""

    def failed(ip: str) -> dict[int, DialResult]:
        tried = fleet.dialed(machine, ip)
        return {source: result for source, result in tried.items() if not result.ok}

    dialed = [ip for ip in fleet.to_dial[machine.rank] if fleet.dialed(machine, ip)]
    ip = min(dialed, key=lambda ip: len(failed(ip)))
    sources = _sources(failed(ip), fleet.dialed(machine, ip), fleet)
    what = f"a connection to {ip} {_how(failed(ip))} {sources}"
    others = [m for m in fleet.machines if not m.shares_network_with(machine)]
    if owner := next((other for other in others if other.facts.interface_of(ip)), None):
        what = f"internal_ip {ip} is an address of {owner.name}"
        return failure(what, "correct internal_ip in the hosts file")
    if router := _router(machine, ip, failed(ip), fleet):
        remedy = f"let {router.name} forward it (`sysctl net.ipv4.ip_forward=1`"
        if router.in_containers:
            remedy += "; Docker's iptables rules drop it: `iptables -I DOCKER-USER -j ACCEPT`"
        return failure(f"{what}, on its way through {router.name}", f"{remedy}), or fix the route")
    firewall = next((f" ({name} is installed there)" for name in machine.details.firewalls), "")
    given = any(host.internal_ip for host in machine.hosts)
    remedy = f"allow all TCP between the hosts in its firewall{firewall}, or "
    return failure(what, remedy + ("correct internal_ip" if given else "set internal_ip"))


def _router(
    machine: Machine, ip: str, failed: Mapping[int, DialResult], fleet: Fleet
) -> Machine | None:
    """Return the machine that should forward the failed dials and probably drops them, if any.

    Docker makes a host drop packets that it should forward. Packets to the host itself, such as all
    of ddpctl's, still arrive.
    """
    for source in (m for m in fleet.machines if m.rank in failed):
        back = fleet.addresses[source.rank].ip
        hops = [source.facts.gateway_to(ip), machine.facts.gateway_to(back)]
        for via in filter(None, hops):
            for other in fleet.machines:
                if other not in (source, machine) and other.facts.interface_of(via):
                    return other
    return None


def _how(failed: Mapping[int, DialResult]) -> str:
    return HOW[common([result.outcome for result in failed.values()])]


def _sources(some: Mapping[int, DialResult], tried: Mapping[int, DialResult], fleet: Fleet) -> str:
    """Describe the sources: `from 34 of 47 hosts (gpu[14-47])`."""
    named = names(machine.name for machine in fleet.machines if machine.rank in some)
    return f"from {len(some)} of {len(tried)} hosts ({named})"


def check_master_port(machine: Machine, fleet: Fleet) -> Iterator[Problem]:
    """Check that the master port is free on node 0, and open to the job's user and other hosts."""
    port, user = fleet.cluster.job.master_port, fleet.cluster.job.user
    if 0 not in machine.ranks or port == "auto":
        return
    holders = (n for n in machine.run_nodes if n.alive and n.node_rank == 0)
    run = next((n for n in holders if n.master_port == str(port)), None)
    if port < 1024 and user != "root" and (user != "host" or machine.facts.uid != 0):
        what = f"port {port} is for root only, and the container's user is {user}"
        yield failure(what, "set job.master_port to 1024 or higher, or to auto")
    elif run and not fleet.waits:
        remedy = f"set job.master_port: auto, or run `ddpctl kill {run.run_id}`"
        yield failure(f"port {port} is taken by run {run.run_id} of {run.owner}", remedy)
    elif port in machine.facts.listening and not run:
        what = f"port {port} is taken by {_holder(machine)}"
        yield failure(what, "set job.master_port: auto, or stop the process")
    ip = fleet.addresses[machine.rank].ip
    tried = fleet.dialed(machine, ip, master=True)
    closed = {source: result for source, result in tried.items() if not result.ok}
    if closed and all(result.ok for result in fleet.dialed(machine, ip).values()):
        what = f"port {port} on {ip} {_how(closed)} {_sources(closed, tried, fleet)}"
        remedy = f"open TCP port {port} in its firewall, or set another job.master_port"
        yield failure(what, remedy)


def _holder(machine: Machine) -> str:
    holder = machine.details.holder
    if holder is None:
        return "a process"
    pid = f", pid {holder.pid}" if holder.pid else ""
    command = one_line(holder.command, LONGEST_COMMAND) or "a process"
    return f"{command} (user {holder.user}{pid})"


CHECKS = {
    "network": (check_interfaces, check_rdma, check_reached),
    "ports": (check_master_port,),
}
