"""The preflight: examine all machines concurrently, let them dial each other, run the checks."""

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ..engines import images
from ..engines.choose import container_engine, engine_traits
from ..engines.engine_info import ImageInfo
from ..errors import DdpctlError, HostUnreachable, PreflightError
from ..facts.gather import gather_one
from ..facts.script import Facts
from ..hosts import Cluster, Host, Job
from ..ssh.connect import AT_ONCE
from ..ssh.node import Node
from . import check_docker, check_gpus, check_network, check_resources, container_test
from .container_test import ContainerReport
from .findings import Finding, failure, in_order, split
from .inventory import Inventory, Machine, Reach, Unseen
from .reach import Probe
from .reach_routes import addressed

USUAL_ROOT = "/var/lib/docker"  # assumed, to avoid waiting for the engine's answer
CHECKS = [
    (name, check)
    for module in (check_docker, check_gpus, check_resources, check_network)
    for name, checks in module.CHECKS.items()
    for check in checks
]


@dataclass(frozen=True)
class Survey:
    """The result. machines: all, in rank order. reports: container tests by first node rank.

    cluster: with the addresses and interfaces that were found.
    """

    findings: Sequence[Finding]
    cluster: Cluster
    machines: Sequence[Machine | Unseen]
    seen: Inventory
    reports: Mapping[int, ContainerReport]

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
        """The exit code of `check`. An unreachable host takes precedence over other hosts' failures."""
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
    """Check all hosts. nodes: in rank order. with_containers: test containers (seconds).

    waits: GPUs in use by other runs are no problem, because the launch will wait for them.
    """
    with contextlib.closing(Probe(cluster)) as probe:
        machines, here = _examine_all(nodes, cluster.job, probe)
        found = [machine for machine in machines if isinstance(machine, Machine)]
        reach = probe.run(found, all_pairs=all_pairs) if len(found) > 1 else Reach()
    seen = Inventory(cluster, found, here, reach, waits)
    findings = [m.problem.at(m.name, "ssh") for m in machines if isinstance(m, Unseen)]
    findings += judge(seen)
    reports: dict[int, ContainerReport] = {}
    if with_containers:
        # a container on a machine that failed would only fail for the same reason
        failed = {finding.host for finding in findings if finding.severity == "failure"}
        able = {m.rank: nodes[m.rank] for m in found if m.name not in failed}
        reports = container_test.run_containers(seen, able)
        findings += container_test.judge(seen, reports)
    return Survey(
        in_order(findings, [machine.name for machine in machines]),
        addressed(cluster, found, reach.routes),
        machines,
        seen,
        reports,
    )


def judge(seen: Inventory) -> Iterator[Finding]:
    for machine in seen.machines:
        for name, check in CHECKS:
            for problem in check(machine, seen):
                yield problem.at(machine.name, name)


def _examine_all(
    nodes: Sequence[Node], job: Job, probe: Probe
) -> tuple[list[Machine | Unseen], ImageInfo | None]:
    """Examine every machine and start the probe agents. Also return this machine's image."""
    groups: dict[tuple[str, int], list[int]] = {}
    for rank, node in enumerate(nodes):
        groups.setdefault(node.host.machine, []).append(rank)
    names = Counter(nodes[ranks[0]].host.name for ranks in groups.values())

    def one(ranks: list[int]) -> Machine | Unseen:
        host = nodes[ranks[0]].host
        name = f"{host.name}:{host.port}" if names[host.name] > 1 and host.port else host.name
        try:
            peers = probe if len(groups) > 1 else None
            return examine(name, {rank: nodes[rank] for rank in ranks}, job, peers)
        except DdpctlError as error:
            return Unseen(name, tuple(ranks), failure(*split(str(error), host.name)))

    with ThreadPoolExecutor(AT_ONCE + 1) as pool:
        here = pool.submit(local_image, job)
        return list(pool.map(one, groups.values())), here.result()


def examine(name: str, nodes: Mapping[int, Node], job: Job, probe: Probe | None = None) -> Machine:
    """Gather the facts of the machine that these node ranks share, and start its probe agent."""
    first = next(iter(nodes))
    node = next((node for node in nodes.values() if node.host.gpus != 0), nodes[first])
    port = str(job.master_port) if first == 0 and job.master_port != "auto" else ""
    folders = [job.metrics_dir] if job.metrics_dir else []
    check = [port, *(mount.split(":")[0] for mount in job.mounts), *folders]
    engine, engine_error = None, None
    node.connect()
    with ThreadPoolExecutor(2) as pool:
        if probe:
            pool.submit(probe.start, first, nodes[first])
        asked = pool.submit(gather_one, node, ports=first == 0, check=[USUAL_ROOT, *check])
        try:
            if found := container_engine(node, job.engine):
                engine = found.engine_info(job.image)
        except HostUnreachable:
            raise
        except DdpctlError as error:
            engine_error = str(error)
        facts = asked.result()
    if engine and engine.root != USUAL_ROOT:
        facts = gather_one(node, ports=first == 0, check=[engine.root, *check])
    hosts = tuple(node.host for node in nodes.values())
    return Machine(name, tuple(nodes), hosts, facts, engine, engine_error)


def local_image(job: Job) -> ImageInfo | None:
    """Return the job's image on this machine's engine; None if it has none."""
    with contextlib.suppress(DdpctlError), contextlib.closing(Node(Host("local"))) as node:
        return images.inspect(node, job.image) if engine_traits(job.engine).in_container else None
    return None
