"""The preflight: examine all machines concurrently, let them dial each other, run the checks.

survey = survey_hosts(nodes, cluster)
survey.findings          problems, each with its remedy
survey.cluster           the cluster with the addresses and interfaces that were found
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from ..engines import images
from ..engines.choose import container_engine, engine_traits
from ..engines.engine_info import EngineInfo, ImageInfo
from ..errors import (
    CommandFailed,
    CommandTimeout,
    DdpctlError,
    DockerUnavailable,
    HostUnreachable,
    PreflightError,
)
from ..facts.gather import gather_one
from ..facts.script import Facts
from ..hosts import Cluster, Host, Job
from ..ssh.connect import AT_ONCE
from ..ssh.node import Node
from . import (
    check_docker,
    check_gpus,
    check_network,
    check_ports,
    check_resources,
    container_test,
)
from .container_test import ContainerReport
from .findings import Finding, failure, in_order, split
from .inventory import Inventory, Machine, Unseen
from .reach import Probe
from .reach_routes import addressed

USUAL_ROOT = "/var/lib/docker"  # assumed, to avoid waiting for the engine's answer
CHECKS = (
    *check_docker.CHECKS,
    *check_gpus.CHECKS,
    *check_resources.CHECKS,
    *check_network.CHECKS,
    *check_ports.CHECKS,
)


@dataclass(frozen=True)
class Survey:
    """The result. machines: all, in rank order. reports: container tests by first node rank."""

    findings: Sequence[Finding]
    cluster: Cluster
    machines: Sequence[Machine | Unseen]
    seen: Inventory
    reports: Mapping[int, ContainerReport] = field(default_factory=dict)

    @property
    def failures(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "failure"]

    @property
    def unseen(self) -> list[Unseen]:
        return [machine for machine in self.machines if isinstance(machine, Unseen)]

    @property
    def facts(self) -> tuple[Facts, ...]:
        """The facts of each node that answered, in rank order."""
        by_rank = {rank: machine.facts for machine in self.seen.machines for rank in machine.ranks}
        return tuple(facts for _, facts in sorted(by_rank.items()))

    @property
    def exit_code(self) -> int:
        """CONTRACT section 6. An unreachable host takes precedence over failures of others."""
        if self.unseen:
            return HostUnreachable.exit_code
        return PreflightError.exit_code if self.failures else 0


def survey_hosts(
    nodes: Sequence[Node],
    cluster: Cluster,
    *,
    all_pairs: bool = False,
    with_containers: bool = False,
    waits: bool = False,
) -> Survey:
    """Check all hosts. nodes: in rank order. with_containers: run the container test (seconds).

    waits: GPUs of other runs are no problem, because the launch will wait for them.
    """
    with contextlib.closing(Probe(cluster)) as probe:
        machines, seen = _examine_all(nodes, cluster, probe)
        if len(seen.machines) > 1:
            reach = probe.run(seen.machines, all_pairs=all_pairs)
            seen = dataclasses.replace(seen, reach=reach)
        seen = dataclasses.replace(seen, waits=waits)
    findings = [*_unseen(machines), *judge(seen)]
    reports: Mapping[int, ContainerReport] = {}
    if with_containers:
        # a container on a machine that failed would only fail for the same reason
        failed = {finding.host for finding in findings if finding.severity == "failure"}
        able = {m.rank: nodes[m.rank] for m in seen.machines if m.name not in failed}
        reports = container_test.run_containers(seen, able)
        findings += container_test.judge(seen, reports)
    return Survey(
        in_order(findings, [machine.name for machine in machines]),
        addressed(cluster, {m.rank: m for m in seen.machines}, seen.reach.routes),
        machines,
        seen,
        reports,
    )


def judge(seen: Inventory) -> Iterator[Finding]:
    for machine in seen.machines:
        for check in CHECKS:
            yield from check(machine, seen)


def _unseen(machines: Sequence[Machine | Unseen]) -> Iterator[Finding]:
    for machine in machines:
        if isinstance(machine, Unseen):
            yield failure(machine.name, "ssh", *split(machine.error, machine.hosts[0].name))


def _examine_all(
    nodes: Sequence[Node], cluster: Cluster, probe: Probe
) -> tuple[list[Machine | Unseen], Inventory]:
    """Examine every machine and start the probe agents at the same time."""
    groups: dict[tuple[str, int], list[int]] = {}
    for rank, node in enumerate(nodes):
        groups.setdefault(node.host.machine, []).append(rank)

    def one(name: str, ranks: Sequence[int]) -> Machine | Unseen:
        def start(node: Node) -> None:
            if len(groups) > 1:
                probe.start(ranks[0], node)

        return examine(name, ranks, [nodes[rank] for rank in ranks], cluster.job, start)

    with ThreadPoolExecutor(AT_ONCE + 1) as pool:
        here = pool.submit(local_image, cluster.job)
        machines = list(pool.map(one, _names(nodes, groups), groups.values()))
    seen = [machine for machine in machines if isinstance(machine, Machine)]
    return machines, Inventory(cluster, seen, here.result())


def examine(
    name: str,
    ranks: Sequence[int],
    nodes: Sequence[Node],
    job: Job,
    beside: Callable[[Node], None],
) -> Machine | Unseen:
    """Gather the facts of the machine that these ranks share. `beside` runs concurrently."""
    hosts = tuple(node.host for node in nodes)
    node = next((node for node in nodes if node.host.gpus != 0), nodes[0])
    first = 0 in ranks
    port = str(job.master_port) if first and job.master_port != "auto" else ""
    folders = [job.metrics_dir] if job.metrics_dir else []
    check = [port, *(mount.split(":")[0] for mount in job.mounts), *folders]
    try:
        node.connect()
        with ThreadPoolExecutor(2) as pool:
            pool.submit(beside, nodes[0])
            asked = pool.submit(gather_one, node, ports=first, check=[USUAL_ROOT, *check])
            engine, engine_error = _engine(node, job)
            facts = asked.result()
            if engine and engine.root != USUAL_ROOT:
                facts = gather_one(node, ports=first, check=[engine.root, *check])
        return Machine(name, tuple(ranks), hosts, facts, engine, engine_error)
    except DdpctlError as error:
        return Unseen(name, tuple(ranks), hosts, str(error))


def _engine(node: Node, job: Job) -> tuple[EngineInfo | None, str | None]:
    """Return the engine's facts, or its error; both None if the job needs no engine."""
    engine = container_engine(node, job.engine)
    try:
        return (engine.engine_info(job.image) if engine else None), None
    except (DockerUnavailable, CommandFailed, CommandTimeout) as error:
        return None, str(error)


def local_image(job: Job) -> ImageInfo | None:
    """Return the job's image on this machine's engine; None if it has none."""
    with contextlib.suppress(DdpctlError), contextlib.closing(Node(Host("local"))) as node:
        return images.inspect(node, job.image) if engine_traits(job.engine).in_container else None
    return None


def _names(nodes: Sequence[Node], groups: Mapping[tuple[str, int], Sequence[int]]) -> list[str]:
    """Return the names in the hosts file, with the port if several machines share a name."""
    hosts = [nodes[ranks[0]].host for ranks in groups.values()]
    names = [host.name for host in hosts]
    return [
        f"{host.name}:{host.port}" if names.count(host.name) > 1 and host.port else host.name
        for host in hosts
    ]
