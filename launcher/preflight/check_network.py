"""Check interfaces, the master port, and that hosts reach each other quickly."""

from collections.abc import Collection, Iterator, Mapping
from statistics import mode

from ..text import names
from .findings import Finding, failure, warning
from .fleet import Fleet, odd_one_out
from .machine import Machine
from .reach import DialResult

SLOW = 1.0  # seconds until a peer answers; TCP repeats a lost first packet after one second

HOW = {
    "timeout": "timed out",
    "refused": "was refused",
    "unreachable": "found no route",
    "wrong": "was answered by another machine",
}


def check_interfaces(machine: Machine, fleet: Fleet) -> Iterator[Finding]:
    """Check the interfaces named in the hosts file, and the address of the host's own name."""
    details, facts = machine.details, machine.facts
    others = ", ".join(i.name for i in facts.interfaces if i.name != "lo")
    for name in dict.fromkeys(host.interface for host in machine.hosts if host.interface):
        nic = facts.interface(name)
        if nic is None and facts.interfaces:
            what = f"interface {name} does not exist; the host has {others}"
            yield failure(what, "fix `interface:` in the hosts file")
        elif nic is not None and nic.state == "down":
            remedy = f"run `ip link set {name} up` on that host, or choose another of {others}"
            yield failure(f"interface {name} is down", remedy)
    if (details.resolved or "").startswith("127.") and len(fleet.machines) > 1:
        what = f"its own name ({facts.hostname}) resolves to {details.resolved} on the host itself"
        remedy = "map it to the host's address in /etc/hosts (ddpctl itself uses addresses)"
        yield warning(what, remedy)


def check_subnets(machine: Machine, fleet: Fleet) -> Iterator[Finding]:
    """Check that each network in use has only one interface, and that all MTUs are equal.

    Otherwise, traffic may leave through the wrong interface, or large messages may hang.
    """
    facts, used = machine.facts, fleet.used(machine)
    if len(fleet.machines) > 1:
        ups = {nic.name for nic in facts.interfaces if nic.state != "down" and nic.kind != "bridge"}
        for network in sorted({address.network for address in used if address.network}):
            routes = [r for r in facts.routes if not r.gateway and str(r.network) == network]
            if len(inside := sorted({route.interface for route in routes} & ups)) > 1:
                what = f"{' and '.join(inside)} are on the same network, {network}"
                remedy = (
                    "give each interface its own network, or remove the addresses of all but one"
                )
                yield warning(f"{what}: traffic may leave through any of them", remedy)

    def mtus(m: Machine) -> tuple[int, ...] | None:
        nics = [m.facts.interface(address.interface) for address in fleet.used(m)]
        return tuple(sorted({nic.mtu for nic in nics if nic and nic.name != "lo"})) or None

    if odd := odd_one_out(machine, fleet, mtus):
        own, usual = ("/".join(map(str, mtu)) for mtu in odd)
        nics = list(dict.fromkeys(address.interface for address in used))
        what = f"MTU {own} on {', '.join(nics)}, while other hosts have {usual}"
        remedy = "set the same MTU on all hosts"
        if len(nics) == len(odd[1]) == 1:
            remedy = f"run `ip link set {nics[0]} mtu {usual}` on that host, or {remedy}"
        yield warning(what, remedy)


def check_reached(machine: Machine, fleet: Fleet) -> Iterator[Finding]:
    """Check that the machine reaches the others, and that they reach its address."""
    reach, ip = fleet.reach, fleet.addresses[machine.rank].ip
    if machine.rank in reach.unprobed and not machine.engine_error:
        what = "cannot test its connections, because it has neither python3 nor the job's image"
        yield warning(
            what, "run `ddpctl push HOSTS --image` first, or install python3 on that host"
        )
    if machine.rank in reach.unfinished:
        what = "it did not report in time which hosts it can connect to"
        yield warning(what, "run the check again once the host is less busy")
    if machine.rank in reach.cut_off:
        what = "it cannot connect to any other host, although the others can reach each other"
        yield failure(what, "allow outgoing TCP in its firewall, and check its routes")
    tried = fleet.dialed(machine, ip)
    if not fleet.to_dial[machine.rank]:
        yield from _without_address(machine, fleet)
    elif _failed(tried):
        yield _unreached(machine, fleet)
    elif slow := {s: result.seconds for s, result in tried.items() if result.seconds >= SLOW}:
        took = f"took up to {max(slow.values()):.1f} s {_sources(slow, tried, fleet)}"
        yield warning(f"connecting to {ip} {took}", "check the load on the host and its network")


def _without_address(machine: Machine, fleet: Fleet) -> Iterator[Finding]:
    named = next((host.interface for host in machine.hosts if host.interface), None)
    nic = machine.facts.interface(named) if named else None
    if named and machine.facts.interfaces and (nic is None or nic.state == "down"):
        return  # reported by check_interfaces
    if any(not other.shares_network_with(machine) for other in fleet.machines):
        what = f"interface {named}" if named else "the host"
        what += " has no address that other hosts can reach"
        yield failure(what, "set `internal_ip:` in the hosts file")


def _unreached(machine: Machine, fleet: Fleet) -> Finding:
    """Return why no address of the machine can be reached from every other host."""
    dialed = [ip for ip in fleet.to_dial[machine.rank] if fleet.dialed(machine, ip)]
    ip = min(dialed, key=lambda ip: len(_failed(fleet.dialed(machine, ip))))
    tried = fleet.dialed(machine, ip)
    what = f"a connection to {ip} {_how(tried, fleet)}"
    others = [m for m in fleet.machines if not m.shares_network_with(machine)]
    if owner := next((other for other in others if other.facts.interface_of(ip)), None):
        what = f"internal_ip {ip} belongs to {owner.name}"
        return failure(what, "fix `internal_ip:` in the hosts file")
    firewall = next((f" ({name} is installed)" for name in machine.details.firewalls), "")
    given = any(host.internal_ip for host in machine.hosts)
    remedy = f"allow all TCP between the hosts in its firewall{firewall}, or "
    return failure(what, remedy + ("fix `internal_ip:`" if given else "set `internal_ip:`"))


def _failed(tried: Mapping[int, DialResult]) -> dict[int, str]:
    """Return the outcomes of the dials that failed, by source."""
    return {source: result.outcome for source, result in tried.items() if not result.ok}


def _how(tried: Mapping[int, DialResult], fleet: Fleet) -> str:
    """Describe the dials that failed: `timed out from 34 of 47 hosts (gpu[14-47])`."""
    failed = _failed(tried)
    return f"{HOW[mode([*failed.values()])]} {_sources(failed, tried, fleet)}"


def _sources(some: Collection[int], tried: Collection[int], fleet: Fleet) -> str:
    named = names(machine.name for machine in fleet.machines if machine.rank in some)
    return f"from {len(some)} of {len(tried)} hosts ({named})"


def check_master_port(machine: Machine, fleet: Fleet) -> Iterator[Finding]:
    """Check that the master port is free on node 0, and open to the job's user and other hosts."""
    job = fleet.cluster.job
    port, user = job.master_port, job.user
    if 0 not in machine.ranks or port == "auto":
        return
    holders = (n for n in machine.run_nodes if n.alive and n.node_rank == 0)
    run = next((n for n in holders if n.master_port == str(port)), None)
    is_root = user == "root" or (user == "host" and machine.facts.uid == 0)
    dropped = fleet.in_containers and {"NET_BIND_SERVICE", "ALL"}.isdisjoint(job.cap_add)
    if port < 1024 and (dropped or not is_root):
        what = f"only root may use port {port}, but the container's user is {user}"
        if is_root:
            what = f"only a container with the capability NET_BIND_SERVICE may use port {port}"
        yield failure(what, "set job.master_port to 1024 or higher, or to auto")
    elif run and not fleet.waits:
        remedy = "set job.master_port: auto, or launch with --wait to wait in line"
        yield failure(f"port {port} is taken by run {run.run_id} ({run.owner})", remedy)
    elif port in machine.facts.listening and not run:
        what = f"port {port} is taken by {machine.details.holder or 'a process'}"
        yield failure(what, "set job.master_port: auto, or stop the process")
    ip = fleet.addresses[machine.rank].ip
    cut_off, dials = fleet.reach.cut_off, fleet.reach.master.items()
    tried = {d.source: result for d, result in dials if d.ip == ip and d.source not in cut_off}
    if _failed(tried) and not _failed(fleet.dialed(machine, ip)):
        remedy = f"open TCP port {port} in its firewall, or set another job.master_port"
        yield failure(f"a connection to port {port} on {ip} {_how(tried, fleet)}", remedy)
