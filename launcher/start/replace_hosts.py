"""Choose the hosts of a restart: spares replace unusable hosts, or the run continues with fewer."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..engines.choose import engine_of
from ..errors import DdpctlError, PreflightError, Several
from ..facts.gather import gather_one
from ..hosts import Cluster, Host
from ..runs.record import RunRecord
from ..ssh import recently_silent
from ..ssh.host_connection import HostConnection, connected
from ..ssh.many import try_each
from ..supervisor.failure_kinds import KINDS, Restart
from ..text import counted

# Failures that are blamed on the host. After two of them, the run uses the host only as a last resort.
BLAMING = ("gpu-failed", "network-cut", "host-lost", "stopped")
Problems = Mapping[Host, DdpctlError]


@dataclass(frozen=True)
class NextHosts:
    """The hosts of the next attempt, which can start only if `missing` is empty."""

    cluster: Cluster
    missing: tuple[DdpctlError, ...] = ()  # problems of hosts for which there is no replacement
    notes: tuple[str, ...] = ()  # what changes, and why


def replace_hosts(
    cluster: Cluster, nnodes: int, unusable: Problems, avoided: Problems, *, fewer: bool = False
) -> NextHosts:
    """Return the next hosts, with spares in place of unusable and avoided hosts. Pure.

    nnodes: how many nodes the user started the run with. fewer: if spares run out, continue with
    fewer hosts, but at least job.min_nodes. Hosts that are left out become spares; replaced hosts
    are not used again.
    """
    fewest = cluster.job.min_nodes or nnodes
    spares = [host for host in cluster.spares if host not in unusable]
    good = [host for host in spares if host not in avoided]
    last_resort = [host for host in spares if host in avoided]
    hosts, notes, without = [], [], []
    replaced: list[Host] = []
    problems = {**avoided, **unusable}
    for host in cluster.hosts:
        problem = problems.get(host)
        if problem is None:
            hosts.append(host)
            continue
        pool = good or (last_resort if host in unusable else [])
        if pool:
            hosts.append(pool.pop(0))
            replaced.append(host)
            notes.append(f"{hosts[-1].name} replaces {host.name}: {problem.what}")
        else:
            hosts.append(host)
            without.append(host)
    missing = [host for host in without if host in unusable]
    dropped = without if len(hosts) - len(without) >= fewest else missing
    if dropped and (fewer or not missing) and len(hosts) - len(dropped) >= fewest:
        hosts = [host for host in hosts if host not in dropped]
        notes += [f"continuing without {host.name}: {problems[host].what}" for host in dropped]
        missing = []
    while len(hosts) < nnodes and good:
        hosts.append(good.pop(0))
        notes.append(f"{hosts[-1].name} joins: the run has {len(hosts)} of {nnodes} nodes")
    used = (*hosts, *replaced)
    rest = [host for host in (*cluster.spares, *cluster.hosts) if host not in used]
    chosen = dataclasses.replace(cluster, hosts=tuple(hosts), spares=tuple(rest))
    return NextHosts(chosen, tuple(unusable[host] for host in missing), tuple(notes))


def unusable_hosts(cluster: Cluster, run_id: str) -> Problems:
    """Return the hosts and spares that do not answer, have no working engine or have lost a GPU."""

    def look(connection: HostConnection) -> None:
        recently_silent.forget(connection.host)
        connection.connect()
        listed = engine_of(connection, cluster.job.engine).nodes(run_id)
        if before := {uuid for each in listed if not each.is_ticket for uuid in each.gpus}:
            lost = before - {gpu.uuid for gpu in gather_one(connection).gpus}
            if lost:
                what = f"lost {len(lost)} of this run's {counted(len(before), 'GPU')}"
                remedy = "check `nvidia-smi` and `dmesg` on that host"
                raise PreflightError(what, remedy, host=connection.name)

    with connected((*cluster.hosts, *cluster.spares)) as connections:
        _, failures = try_each(connections, look)
    return {connection.host: error.on(connection.name) for connection, error in failures.items()}


def hosts_to_avoid(record: RunRecord, cluster: Cluster) -> Problems:
    """Return the hosts to avoid because they are to blame for failures, each with the reason."""
    problems = {}
    newest = record.restarts[-1] if record.restarts else None
    for host in (*cluster.hosts, *cluster.spares):
        blamed = [r for r in record.restarts if r.host == host.name and r.cause in BLAMING]
        if newest and newest.host == host.name and broke_its_host(newest.cause):
            problems[host] = PreflightError(newest.message, host=host.name)
        elif len(blamed) > 1:
            what = f"caused {len(blamed)} failures of this run"
            what += f", the last one of kind {blamed[-1].cause}"
            problems[host] = PreflightError(what, host=host.name)
    return problems


def broke_its_host(cause: str) -> bool:
    """Return whether a failure of this kind is expected to recur on the same host."""
    elsewhere = cause in KINDS and KINDS[cause].restart is Restart.ELSEWHERE
    return cause == "network-cut" or elsewhere


def rejected_hosts(error: DdpctlError, hosts: Sequence[Host]) -> Problems:
    """Return the hosts named in an attempt's error, each with its own error."""
    errors = error.errors if isinstance(error, Several) else (error,)
    problems: dict[Host, DdpctlError] = {}
    for each in errors:
        if isinstance(each, Several):
            problems |= rejected_hosts(each, hosts)
        for host in hosts:
            if each.host in (host.name, f"{host.name}:{host.port}"):
                problems.setdefault(host, each)
    return problems
