"""The preflight: examine all machines concurrently, let them dial each other, run the checks."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..engines.choose import engine_of, engine_traits, images_of
from ..engines.engine_info import EngineInfo, ImageInfo
from ..errors import DdpctlError, HostUnreachable, PreflightError
from ..facts.facts import Facts
from ..facts.gather import gather_one
from ..hosts import Cluster, Host, Job
from ..ssh.background import in_background
from ..ssh.many import try_each
from ..ssh.node import Node
from . import (
    check_docker,
    check_gpus,
    check_network,
    check_python,
    check_rdma,
    check_resources,
    container_test,
)
from .blamed import blame_of
from .check_python import versions_or_error
from .container_test import ContainerReport
from .findings import Finding, failure_of, in_order
from .fleet import Fleet
from .machine import Machine, UnreachableMachine
from .probe import Probe

USUAL_ROOT = "/var/lib/docker"  # assumed, to avoid waiting for the engine's answer
MODULES = (check_docker, check_python, check_gpus, check_resources, check_network, check_rdma)
CHECKS = [
    (name, check)
    for module in MODULES
    for name, checks in module.CHECKS.items()
    for check in checks
]


@dataclass(frozen=True)
class Survey:
    """The result: what the hosts reported, and what is wrong with it.

    machines: all, in rank order. reports: container tests by first node rank.
    """

    findings: Sequence[Finding]
    machines: Sequence[Machine | UnreachableMachine]
    fleet: Fleet
    reports: Mapping[int, ContainerReport]
    spares: tuple[str, ...] = ()  # names of spares that were checked too

    @property
    def failures(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "failure"]

    @property
    def unreachable(self) -> list[UnreachableMachine]:
        return [machine for machine in self.machines if isinstance(machine, UnreachableMachine)]

    @property
    def facts(self) -> tuple[Facts, ...]:
        """The facts of each node that answered, in rank order."""
        machines = self.fleet.machines
        by_rank = {rank: machine.facts for machine in machines for rank in machine.ranks}
        return tuple(facts for _, facts in sorted(by_rank.items()))

    @property
    def exit_code(self) -> int:
        """The exit code of `check`. An unreachable host takes precedence over other hosts' failures."""
        if self.unreachable:
            return HostUnreachable.exit_code
        return PreflightError.exit_code if self.failures else 0


def survey_all(
    nodes: Sequence[Node],
    spares: Sequence[Node],
    cluster: Cluster,
    *,
    with_containers: bool = False,
    waits: bool = False,
) -> Survey:
    """Check the hosts, the spares among each other, and which of them were to blame for failures.

    All problems of spares are warnings. For the other parameters see `survey_hosts`.
    """
    of_spares = in_background(lambda: survey_spares(spares, cluster))
    survey = survey_hosts(nodes, cluster, with_containers=with_containers, waits=waits)
    findings = [*survey.findings, *of_spares.result(), *blame_of([*nodes, *spares])]
    names = tuple(dict.fromkeys(node.name for node in spares))
    return dataclasses.replace(survey, findings=findings, spares=names)


def survey_hosts(
    nodes: Sequence[Node],
    cluster: Cluster,
    *,
    with_containers: bool = False,
    waits: bool = False,
) -> Survey:
    """Check all hosts. nodes: in rank order. with_containers: test containers (seconds).

    waits: GPUs in use by other runs are no problem, because the launch will wait for them.
    """
    with contextlib.closing(Probe(cluster.job)) as probe:
        image_here = in_background(lambda: local_image(cluster.job))
        machines = examine_all(nodes, cluster.job, probe)
        answered = [machine for machine in machines if isinstance(machine, Machine)]
        reach = probe.run(answered)
    fleet = Fleet(cluster, answered, image_here.result(), reach, waits)
    findings = [
        *(m.problem.at(m.name, "ssh") for m in machines if isinstance(m, UnreachableMachine)),
        *judge(fleet),
    ]
    reports: Mapping[int, ContainerReport] = {}
    if with_containers:  # not on machines that have failed: they would fail for the same reason
        failed = {finding.host for finding in findings if finding.severity == "failure"}
        able = {m.rank: nodes[m.rank] for m in answered if m.name not in failed}
        reports = container_test.run_containers(fleet, able)
    findings += container_test.judge(fleet, reports)
    names = [machine.name for machine in machines]
    return Survey(in_order(findings, names), machines, fleet, reports)


def survey_spares(nodes: Sequence[Node], cluster: Cluster) -> list[Finding]:
    """Check the spares, among each other. All their problems are warnings."""
    if not nodes:
        return []
    spares = dataclasses.replace(cluster, hosts=cluster.spares, spares=())
    findings = survey_hosts(nodes, spares).findings
    return [dataclasses.replace(finding, severity="warning") for finding in findings]


def judge(fleet: Fleet) -> Iterator[Finding]:
    for machine in fleet.machines:
        for name, check in CHECKS:
            for problem in check(machine, fleet):
                yield problem.at(machine.name, name)


def examine_all(
    nodes: Sequence[Node], job: Job, probe: Probe
) -> list[Machine | UnreachableMachine]:
    """Examine every machine, and start the probe's agents if there are several."""
    by_machine: dict[tuple[str, int], dict[int, Node]] = {}
    for rank, node in enumerate(nodes):
        by_machine.setdefault(node.host.machine, {})[rank] = node
    first = {next(iter(group.values())): group for group in by_machine.values()}
    names = Counter(node.name for node in first)
    peers = probe if len(first) > 1 else None

    def name(host: Host) -> str:
        return f"{host.name}:{host.port}" if names[host.name] > 1 and host.port else host.name

    machines, errors = try_each(
        [*first], lambda node: examine(name(node.host), first[node], job, peers)
    )
    return [
        machines[node]
        if node in machines
        else UnreachableMachine(name(node.host), tuple(group), failure_of(errors[node]))
        for node, group in first.items()
    ]


def examine(name: str, nodes: Mapping[int, Node], job: Job, probe: Probe | None = None) -> Machine:
    """Gather the facts of the machine that these node ranks share, and start its probe agent."""
    first = next(iter(nodes))
    node = next((node for node in nodes.values() if node.host.gpus != 0), nodes[first])
    port = str(job.master_port) if first == 0 and job.master_port != "auto" else ""
    folders = [job.metrics_dir] if job.metrics_dir else []
    check = [port, *(mount.split(":")[0] for mount in job.mounts), *folders]
    engine: EngineInfo | None = None
    engine_error: DdpctlError | None = None
    node.connect()
    agent = in_background(lambda: probe.start(first, nodes[first]) if probe else None)
    answer = in_background(lambda: gather_one(node, ports=first == 0, check=[USUAL_ROOT, *check]))
    python = None if engine_traits(job.engine).in_container else versions_or_error(node, job)
    try:
        engine = engine_of(node, job.engine).engine_info(job.image)
    except HostUnreachable:
        raise
    except Exception as error:
        engine_error = node.explain(error)
    facts = answer.result()
    if engine and engine.root != USUAL_ROOT:
        facts = gather_one(node, ports=first == 0, check=[engine.root, *check])
    agent.result()
    hosts = tuple(node.host for node in nodes.values())
    return Machine(name, tuple(nodes), hosts, facts, engine, engine_error, python)


def local_image(job: Job) -> ImageInfo | None:
    """Return the job's image on this machine's engine; None if it has none."""
    if engine_traits(job.engine).keeps_containers:
        with contextlib.suppress(DdpctlError), contextlib.closing(Node(Host("local"))) as node:
            return images_of(node).inspect(job.image)
    return None
