"""Asking every machine at once, letting each try to reach the others, and judging what was seen.

survey = survey_hosts(nodes, cluster)
survey.findings          what is wrong, with the remedy
survey.cluster           the cluster with the addresses and interfaces that were found
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from launcher.engines.images import Image
from launcher.errors import HostUnreachable, PreflightError
from launcher.facts.script import Facts
from launcher.hosts import Cluster
from launcher.preflight import (
    check_docker,
    check_gpus,
    check_image,
    check_ports,
    check_resources,
    reach_routes,
)
from launcher.preflight.collect import image_here, look
from launcher.preflight.container_test import Trial, check_trial, check_versions
from launcher.preflight.container_trials import try_containers
from launcher.preflight.findings import Finding, in_order
from launcher.preflight.machine import Machine
from launcher.preflight.reach import Probing
from launcher.ssh.node import Node


@dataclass(frozen=True)
class Survey:
    findings: list[Finding]
    cluster: Cluster
    machines: list[Machine]
    routes: list[reach_routes.Route]
    trials: list[Trial | None]
    here: Image | None  # the job's image on this machine

    @property
    def failures(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "failure"]

    @property
    def facts(self) -> tuple[Facts, ...]:
        """Of each node, in rank order; one on a host that was not seen is left out."""
        by_rank = {rank: machine.facts for machine in self.machines for rank in machine.ranks}
        return tuple(facts for _, facts in sorted(by_rank.items()) if facts)

    @property
    def exit_code(self) -> int:
        """As CONTRACT 6: a host that was not seen comes before anything that was."""
        if any(machine.ssh_error for machine in self.machines):
            return HostUnreachable.exit_code
        return PreflightError.exit_code if self.failures else 0


def survey_hosts(
    nodes: Sequence[Node],
    cluster: Cluster,
    facts: Sequence[Facts] | None = None,
    *,
    with_trials: bool = False,
) -> Survey:
    """nodes and facts (where they are known already) are in rank order.

    with_trials: starts a short container on each host too, which takes seconds (torch is imported).
    """
    groups = _machines(nodes)
    probing = Probing(cluster) if len(groups) > 1 else None
    try:
        machines, here = _look_at_all(nodes, groups, cluster, facts, probing)
        findings = judge(machines, cluster, here)
        found_routes = [reach_routes.Route(None, None, "not tried") for _ in machines]
        if probing:
            answers, unable = probing.run(machines)
            found_routes = reach_routes.choose(machines, answers)
            findings += unable
            findings += reach_routes.check_routes(
                machines, answers, found_routes, cluster.job.master_port
            )
            findings += reach_routes.check_mtus(machines, found_routes)
    finally:
        if probing:
            probing.close()
    trials: list[Trial | None] = [None] * len(machines)
    if with_trials and cluster.job.engine == "docker":
        trials = _trials(machines, [nodes[ranks[0]] for ranks in groups], cluster, findings)
        for machine, trial in zip(machines, trials, strict=True):
            findings += check_trial(machine, trial)
        findings += check_versions(machines, trials, cluster)
    names = [machine.name for machine in machines]
    return Survey(
        findings=in_order(findings, names),
        cluster=reach_routes.addressed(cluster, machines, found_routes),
        machines=machines,
        routes=found_routes,
        trials=trials,
        here=here,
    )


def _look_at_all(
    nodes: Sequence[Node],
    groups: Sequence[Sequence[int]],
    cluster: Cluster,
    facts: Sequence[Facts] | None,
    probing: Probing | None,
) -> tuple[list[Machine], Image | None]:
    """Every machine, and the image as it is here. Their probe agents are started on the way."""
    with ThreadPoolExecutor(len(groups) + 1) as pool:
        asking_here = pool.submit(image_here, cluster)
        looking = [
            pool.submit(
                look,
                name,
                [nodes[rank] for rank in ranks],
                ranks,
                cluster,
                facts[ranks[0]] if facts else None,
                partial(probing.start, index, nodes[ranks[0]]) if probing else None,
            )
            for index, (name, ranks) in enumerate(zip(_names(nodes, groups), groups, strict=True))
        ]
        return [future.result() for future in looking], asking_here.result()


def _trials(
    machines: Sequence[Machine],
    nodes: Sequence[Node],
    cluster: Cluster,
    findings: Sequence[Finding],
) -> list[Trial | None]:
    """Not on a machine that has failed already: the trial would only say it in other words."""
    failed = {finding.host for finding in findings if finding.severity == "failure"}
    kept = [i for i, machine in enumerate(machines) if machine.name not in failed]
    made = try_containers([machines[i] for i in kept], [nodes[i] for i in kept], cluster)
    trials: list[Trial | None] = [None] * len(machines)
    for i, trial in zip(kept, made, strict=True):
        trials[i] = trial
    return trials


def _machines(nodes: Sequence[Node]) -> list[list[int]]:
    """The ranks of each machine, in the order of its first."""
    groups: dict[tuple[str, int], list[int]] = {}
    for rank, node in enumerate(nodes):
        groups.setdefault(node.host.machine, []).append(rank)
    return list(groups.values())


def _names(nodes: Sequence[Node], groups: Sequence[Sequence[int]]) -> list[str]:
    """As in the hosts file; with the port where the name alone stands for several machines."""
    names = [nodes[ranks[0]].name for ranks in groups]
    ports = [nodes[ranks[0]].host.port for ranks in groups]
    return [
        f"{name}:{port}" if names.count(name) > 1 and port else name
        for name, port in zip(names, ports, strict=True)
    ]


def judge(machines: list[Machine], cluster: Cluster, here: Image | None) -> list[Finding]:
    """Every check that needs no more than what each machine said."""
    job = cluster.job
    alone = len(machines) == 1
    found: list[Finding] = []
    for machine in machines:
        found += check_docker.check_ssh(machine)
        found += check_docker.check_docker(machine)
        found += check_gpus.check_driver(machine)
        found += check_gpus.check_requested(machine, cluster)
        found += check_gpus.check_toolkit(machine)
        found += check_gpus.check_fabric_manager(machine)
        found += check_gpus.check_mig(machine)
        found += check_gpus.check_busy(machine)
        found += check_gpus.check_cuda(machine)
        found += check_image.check_architecture(machine, here)
        found += check_resources.check_disk(machine, job)
        found += check_resources.check_memory(machine, job)
        found += check_resources.check_infiniband(machine, job)
        found += reach_routes.check_interfaces(machine, alone=alone)
    found += check_gpus.check_alike(machines, cluster)
    found += check_image.check_image(machines, cluster, here)
    found += check_resources.check_clocks(machines, cluster)
    found += check_ports.check_master_port(machines, cluster)
    found += check_ports.check_leftovers(machines)
    return found
