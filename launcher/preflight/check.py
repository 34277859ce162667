"""The preflight: examine all machines concurrently, let them dial each other, run all checks."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..engines.choose import engine_of, engine_traits, image_here, nodes_on
from ..engines.engine_info import EngineInfo, ImageInfo
from ..engines.status import NodeStatus
from ..errors import DdpctlError, HostUnreachable, Several
from ..facts.facts import Facts
from ..facts.gather import gather_one
from ..hosts import Cluster, Job
from ..ssh.background import in_background
from ..ssh.host_connection import HostConnection
from ..ssh.many import try_each
from . import (
    check_clock,
    check_container,
    check_docker,
    check_gpus,
    check_network,
    check_python,
    check_rdma,
    check_resources,
)
from .blamed import blame_of
from .check_python import versions_or_error
from .container_test import with_reports
from .findings import Finding, failure_of, in_order
from .fleet import Fleet
from .machine import Machine
from .probe import Probe

# The engine's folder; assumed, to avoid waiting for the engine's answer
USUAL_ROOT = "/var/lib/docker"
CHECKS: Mapping[str, Sequence[Callable[[Machine, Fleet], Iterable[Finding]]]] = {  # by column
    "docker": [check_docker.check_engine],
    "gpus": [
        check_gpus.check_driver,
        check_gpus.check_toolkit,
        check_gpus.check_requested,
        check_gpus.check_shared,
        check_gpus.check_free,
        check_gpus.check_health,
        check_gpus.check_peers,
        check_gpus.check_alike,
        check_container.check_seen_gpus,
    ],
    "image": [
        check_docker.check_image,
        check_python.check_packages,
        check_container.check_container,
        check_container.check_versions,
    ],
    "disk": [check_resources.check_disk, check_container.check_writing],
    "memory": [check_resources.check_memory],
    "clock": [check_clock.check_clock],
    "network": [
        check_network.check_interfaces,
        check_network.check_subnets,
        check_network.check_reached,
        check_rdma.check_rdma,
        check_rdma.check_rails,
        check_rdma.check_fast_ports,
    ],
    "ports": [check_network.check_master_port],
    "runs": [check_docker.check_leftovers],
}


@dataclass(frozen=True)
class Survey:
    """The result of a check: the hosts' reports, and the problems found.

    ranks: node ranks by machine name, including machines that did not answer.
    """

    findings: Sequence[Finding]
    ranks: Mapping[str, tuple[int, ...]]
    fleet: Fleet
    spares: Sequence[str] = ()  # names of spares that were checked too

    @property
    def failures(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "failure"]

    @property
    def facts(self) -> tuple[Facts, ...]:
        """The facts of each node that answered, in rank order."""
        machines = self.fleet.machines
        by_rank = {rank: machine.facts for machine in machines for rank in machine.ranks}
        return tuple(facts for _, facts in sorted(by_rank.items()))

    @property
    def images(self) -> dict[int, ImageInfo]:
        """The job's image on the hosts that were seen to have it, by node rank.

        A machine with several accounts is left out, because each of them may have images of its own.
        """
        return {
            rank: machine.engine.image
            for machine in self.fleet.machines
            if machine.engine and machine.engine.image
            if len({host.account for host in machine.hosts}) == 1
            for rank in machine.ranks
        }

    @property
    def exit_code(self) -> int:
        """The exit code of `check`. An unreachable host takes precedence over other hosts' failures."""
        errors = [finding.error() for finding in self.failures]
        return Several(errors).exit_code if errors else 0


def survey_all(
    connections: Sequence[HostConnection],
    spares: Sequence[HostConnection],
    cluster: Cluster,
    *,
    with_containers: bool = False,
    waits: bool = False,
) -> Survey:
    """Check the hosts and, separately, the spares. Return all results.

    Adds a warning for each one that was blamed for a failure. Problems of spares are only warnings.
    with_containers, waits: see `survey_hosts`; they do not apply to spares.
    """
    alone = replace(cluster, hosts=tuple(spare.host for spare in spares), spares=())
    of_spares = in_background(lambda: survey_hosts(spares, alone).findings if spares else ())
    survey = survey_hosts(connections, cluster, with_containers=with_containers, waits=waits)
    warnings = [replace(finding, severity="warning") for finding in of_spares.result()]
    findings = [*survey.findings, *warnings, *blame_of([*connections, *spares])]
    return replace(
        survey, findings=findings, spares=[*dict.fromkeys(connection.name for connection in spares)]
    )


def survey_hosts(
    connections: Sequence[HostConnection],
    cluster: Cluster,
    *,
    with_containers: bool = False,
    waits: bool = False,
) -> Survey:
    """Check all hosts and return the results. connections: one per node, in rank order.

    with_containers: also run test containers (takes seconds). waits: accept GPUs that other runs
    are using, because the launch will wait for them.
    """
    with contextlib.closing(Probe(cluster.job)) as probe:
        own_image = in_background(local_image, cluster.job)
        ranks, machines, errors = examine_all(connections, cluster.job, probe)
        reach = probe.run(machines)
    fleet = Fleet(cluster, machines, own_image.result(), reach, waits)
    findings = judge(fleet)
    if with_containers:  # except on machines that have failed already
        failed = {finding.host for finding in findings if finding.severity == "failure"}
        able = {m.rank: connections[m.rank] for m in machines if m.name not in failed}
        fleet = with_reports(fleet, able)
        findings = judge(fleet)
    findings += [failure_of(error).at(name, "ssh") for name, error in errors.items()]
    return Survey(in_order(findings, [*ranks]), ranks, fleet)


def judge(fleet: Fleet) -> list[Finding]:
    """Return the findings of all checks on all machines."""
    return [
        finding.at(machine.name, name)
        for machine in fleet.machines
        for name, checks in CHECKS.items()
        for check in checks
        for finding in check(machine, fleet)
    ]


def examine_all(
    connections: Sequence[HostConnection], job: Job, probe: Probe
) -> tuple[dict[str, tuple[int, ...]], list[Machine], dict[str, DdpctlError]]:
    """Examine every machine and, if there are several, start the probe's agents.

    Return the node ranks by machine name, the machines that answered, and the other machines' errors
    by name.
    """
    by_machine: dict[tuple[str, int], dict[int, HostConnection]] = {}
    for rank, connection in enumerate(connections):
        by_machine.setdefault(connection.host.machine, {})[rank] = connection
    first = {next(iter(group.values())): group for group in by_machine.values()}
    names = Counter(connection.name for connection in first)
    peers = probe if len(first) > 1 else None

    def name(connection: HostConnection) -> str:
        port = connection.host.port if names[connection.name] > 1 else None
        return f"{connection.name}:{port}" if port else connection.name

    machines, errors = try_each(
        [*first], lambda connection: examine(name(connection), first[connection], job, peers)
    )
    return (
        {name(connection): tuple(group) for connection, group in first.items()},
        [*machines.values()],
        {name(connection): error for connection, error in errors.items()},
    )


def examine(
    name: str, connections: Mapping[int, HostConnection], job: Job, probe: Probe | None = None
) -> Machine:
    """Return what is known of the machine that all `connections` lead to. Start its probe agent.

    connections: by node rank. Raises HostUnreachable if the machine cannot be reached.
    """
    rank, first = next(iter(connections.items()))
    # over the connection of a node with GPUs, because only there does `gather_one` ask about GPUs
    connection = next((each for each in connections.values() if each.host.gpus != 0), first)
    port = str(job.master_port) if rank == 0 and job.master_port != "auto" else ""
    folders = [job.metrics_dir] if job.metrics_dir else []
    check = [port, *(path.split(":")[0] for path in (*job.mounts, *job.devices)), *folders]
    engine: EngineInfo | None = None
    engine_error: DdpctlError | None = None
    run_nodes: tuple[NodeStatus, ...] = ()
    connection.connect()
    agent = in_background(lambda: probe.start(rank, first) if probe else None)
    answer = in_background(gather_one, connection, [USUAL_ROOT, *check])
    python = None if engine_traits(job.engine).in_container else versions_or_error(connection, job)
    try:
        engine = engine_of(connection, job.engine).engine_info(job.image)
        run_nodes = tuple(nodes_on(connection, job.engine))
    except HostUnreachable:
        raise
    except Exception as error:
        engine_error = connection.explain(error)
    facts = answer.result()
    if engine and engine.root != USUAL_ROOT:
        facts = gather_one(connection, [engine.root, *check])
    agent.result()
    hosts = tuple(connection.host for connection in connections.values())
    ranks = tuple(connections)
    return Machine(name, ranks, hosts, facts, engine, engine_error, python, run_nodes)


def local_image(job: Job) -> ImageInfo | None:
    """Return the job's image if this machine's engine has it, else None."""
    if engine_traits(job.engine).keeps_containers:
        with contextlib.suppress(DdpctlError):
            return image_here(job.image)
    return None
