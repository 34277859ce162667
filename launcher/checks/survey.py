"""Asking every machine at once, letting each try to reach the others, and judging what was seen.

survey = survey_hosts(nodes, cluster)
survey.findings          what is wrong, with the remedy
survey.cluster           the cluster with the addresses and interfaces that were found
"""

from __future__ import annotations

import dataclasses
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from launcher.errors import (
    CommandFailed,
    CommandTimeout,
    DdpctlError,
    DockerUnavailable,
    HostUnreachable,
    PreflightError,
)
from launcher.facts import Facts
from launcher.hosts import Cluster, Host
from launcher.remote.engine_info import engine_info, image_info, run_of_containers
from launcher.remote.node import Node, Stream
from launcher.start import ask, engine_of

from . import details as details_module
from . import engines, gpus, images, resources, routes, runs
from .details import Details
from .findings import Finding, in_order, warning
from .machine import Docker, Image, Machine, docker_of, image_of
from .probe import Dial, agent_argv, parse_answer, parse_ready

AGENT_TIMEOUT = 10.0  # seconds until an agent listens; a container takes the longest
ANSWERS_TIMEOUT = 6.0
GRACE = 0.3  # seconds for slower answers once every machine is known to be reached


@dataclass(frozen=True)
class Survey:
    findings: list[Finding]
    cluster: Cluster
    machines: list[Machine]
    routes: list[routes.Route]

    @property
    def failures(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "failure"]

    @property
    def exit_code(self) -> int:
        """As CONTRACT 6: a host that was not seen comes before anything that was."""
        if any(machine.ssh_error for machine in self.machines):
            return HostUnreachable.exit_code
        return PreflightError.exit_code if self.failures else 0


def survey_hosts(
    nodes: Sequence[Node], cluster: Cluster, facts: Sequence[Facts] | None = None
) -> Survey:
    """nodes and facts (where they are known already) are in rank order."""
    groups = _machines(nodes)
    with ThreadPoolExecutor(len(groups) + 1) as pool:
        asking_here = pool.submit(_image_here, cluster)
        looking = [
            pool.submit(
                _look,
                name,
                [nodes[rank] for rank in ranks],
                ranks,
                cluster,
                facts[ranks[0]] if facts else None,
            )
            for name, ranks in zip(_names(nodes, groups), groups, strict=True)
        ]
        machines = [future.result() for future in looking]
        here = asking_here.result()
    findings = _judge(machines, cluster, here)
    found_routes = [routes.Route(None, None, "not tried") for _ in machines]
    if len(machines) > 1:
        answers, unable = _probe([nodes[ranks[0]] for ranks in groups], machines, cluster)
        found_routes = routes.choose(machines, answers)
        findings += unable
        findings += routes.check_routes(machines, answers, found_routes, cluster.job.master_port)
        findings += routes.check_mtus(machines, found_routes)
    names = [machine.name for machine in machines]
    return Survey(
        findings=in_order(findings, names),
        cluster=routes.addressed(cluster, machines, found_routes),
        machines=machines,
        routes=found_routes,
    )


def preflight(
    nodes: Sequence[Node], cluster: Cluster, facts: Sequence[Facts] | None = None
) -> list[Finding]:
    """The findings of `survey_hosts`, for who needs no more."""
    return survey_hosts(nodes, cluster, facts).findings


def _machines(nodes: Sequence[Node]) -> list[list[int]]:
    """The ranks of each machine, in the order of its first."""
    groups: dict[tuple[str, int | None], list[int]] = {}
    for rank, node in enumerate(nodes):
        groups.setdefault((node.host.host.lower(), node.host.port), []).append(rank)
    return list(groups.values())


def _names(nodes: Sequence[Node], groups: Sequence[Sequence[int]]) -> list[str]:
    """As in the hosts file; with the port where the name alone stands for several machines."""
    names = [nodes[ranks[0]].name for ranks in groups]
    ports = [nodes[ranks[0]].host.port for ranks in groups]
    return [
        f"{name}:{port}" if names.count(name) > 1 and port else name
        for name, port in zip(names, ports, strict=True)
    ]


# Looking at one machine


def _look(
    name: str, group: Sequence[Node], ranks: Sequence[int], cluster: Cluster, facts: Facts | None
) -> Machine:
    """What can be seen of one machine; what cannot is left out and its cause kept."""
    node = next((node for node in group if node.host.gpus != 0), group[0])
    machine = Machine(name, tuple(ranks), tuple(node.host for node in group))
    try:
        node.connect()
        with ThreadPoolExecutor(1) as beside:
            asking = beside.submit(lambda: facts or ask([node])[0])
            docker, docker_error = _docker(node, cluster)
            port = cluster.job.master_port if 0 in ranks else "auto"
            details = _details(node, docker, port, machine.wants_gpus)
        return dataclasses.replace(
            machine,
            facts=asking.result(),
            details=details,
            docker=docker,
            docker_error=docker_error,
        )
    except DdpctlError as error:
        return dataclasses.replace(machine, ssh_error=str(error))


def _docker(node: Node, cluster: Cluster) -> tuple[Docker | None, str | None]:
    if cluster.job.engine != "docker":
        return None, None
    try:
        info = engine_info(node)
        image = image_info(node, cluster.job.image)
        nodes = engine_of(node, "docker").list()
        return docker_of(info, image, nodes, run_of_containers(node)), None
    except (DockerUnavailable, CommandTimeout) as error:
        return None, str(error)


def _details(node: Node, docker: Docker | None, port: int | str, with_gpus: bool) -> Details:
    argv = ["sh", "-c", details_module.SCRIPT, "sh", docker.root if docker else ""]
    argv += ["" if port == "auto" else str(port), "gpus" if with_gpus else ""]
    done = node.run(argv, timeout=60.0)
    try:
        return details_module.parse(done.stdout.decode(errors="replace"))
    except ValueError as error:
        raise CommandFailed(
            f"{node.name}: {error}; the SSH user must be able to run `sh` there"
        ) from None


def _image_here(cluster: Cluster) -> Image | None:
    """The image as this machine's own engine has it, if there is one."""
    if cluster.job.engine != "docker":
        return None
    node = Node(Host("local"))
    try:
        inspected = image_info(node, cluster.job.image)
        return image_of(inspected) if inspected else None
    except DdpctlError:
        return None
    finally:
        node.close()


# Each machine tries to reach each other one


def _probe(
    nodes: Sequence[Node], machines: Sequence[Machine], cluster: Cluster
) -> tuple[dict[Dial, str], list[Finding]]:
    """What every dial met, and a warning for each machine that could not take part."""
    port = cluster.job.master_port
    token = secrets.token_hex(8)
    probing = _Probing()
    try:
        with ThreadPoolExecutor(len(nodes)) as pool:
            starting = [
                pool.submit(_start_agent, node, index, token, machine, port, cluster.job.image)
                for index, (node, machine) in enumerate(zip(nodes, machines, strict=True))
            ]
            agents = [future.result() for future in starting]
            probing.agents = [agent for agent in agents if agent is not None]
            listening = [agent.listening if agent else None for agent in agents]
            able = [
                machine if ports else dataclasses.replace(machine, facts=None)
                for machine, ports in zip(machines, listening, strict=True)
            ]
            first = next(i for i, m in enumerate(machines) if 0 in m.ranks)
            tries_master = port != "auto" and int(port) in (listening[first] or {})
            dials = routes.dials_for(able, tries_master)
            for agent in probing.agents:
                pool.submit(probing.dial, agent, dials, listening, int(port) if tries_master else 0)
            answers = probing.wait(dials)
    finally:
        probing.close()
    unable = [
        warning(
            machine.name,
            "network",
            "whether the other hosts reach it was not tried: no python3, perl or image there",
            "`ddpctl push HOSTS --image` first, or install perl",
        )
        for machine, ports in zip(machines, listening, strict=True)
        if machine.facts is not None and not ports
    ]
    return answers, unable


@dataclass(frozen=True)
class _Agent:
    machine: int
    stream: Stream
    listening: dict[int, int]  # asked port -> actual port


def _start_agent(
    node: Node, index: int, token: str, machine: Machine, port: int | str, image: str
) -> _Agent | None:
    if machine.facts is None:
        return None
    ports = [0] if port == "auto" or 0 not in machine.ranks else [0, int(port)]
    in_image = image if machine.docker and machine.docker.image else ""
    stream = node.open(agent_argv(index, token, ports, in_image))
    lines: list[str] = []
    try:
        for line in _lines(stream, time.monotonic() + AGENT_TIMEOUT):
            lines.append(line)
            if line == "ready":
                break
    except (DdpctlError, TimeoutError):
        lines.clear()
    listening = parse_ready(lines)
    if not listening:
        stream.close()
        return None
    return _Agent(index, stream, listening)


class _Probing:
    """The answers as they come in; over when all are in, or when enough are and a moment passed."""

    def __init__(self) -> None:
        self.agents: list[_Agent] = []
        self.answers: dict[Dial, str] = {}
        self.changed = threading.Condition()
        self.over = False

    def dial(
        self,
        agent: _Agent,
        dials: Sequence[Dial],
        listening: Sequence[dict[int, int] | None],
        master_port: int,
    ) -> None:
        """Tells one agent what to try and takes in what it says."""
        told = []
        for key, dial in enumerate(dials):
            ports = listening[dial.target] or {}
            port = master_port if dial.is_master_port else ports.get(0, 0)
            if dial.source == agent.machine:
                told.append(f"dial {key} {dial.address} {port}\n")
        try:
            agent.stream.write("".join([*told, "go\n"]).encode())
            for line in _lines(agent.stream, time.monotonic() + ANSWERS_TIMEOUT, self._is_over):
                answer = parse_answer(line, dials)
                with self.changed:
                    if answer is not None:
                        self.answers[answer[0]] = answer[1]
                        self.changed.notify_all()
                if line == "done":
                    return
        except (DdpctlError, OSError):
            return  # what it did not say counts as a timeout

    def wait(self, dials: Sequence[Dial]) -> dict[Dial, str]:
        deadline = time.monotonic() + ANSWERS_TIMEOUT
        with self.changed:
            while len(self.answers) < len(dials) and (left := deadline - time.monotonic()) > 0:
                if _is_enough(self.answers, dials):
                    deadline = min(deadline, time.monotonic() + GRACE)
                self.changed.wait(min(left, GRACE))
            self.over = True
            return {dial: self.answers.get(dial, "timeout") for dial in dials}

    def _is_over(self) -> bool:
        return self.over

    def close(self) -> None:
        self.over = True
        for agent in self.agents:
            agent.stream.close()


def _is_enough(answers: Mapping[Dial, str], dials: Sequence[Dial]) -> bool:
    """Every machine has an address that all the others have reached."""
    reached: dict[tuple[int, str], bool] = {}
    for dial in dials:
        key = (dial.target, dial.address)
        reached[key] = reached.get(key, True) and answers.get(dial) == "ok"
    targets = {dial.target for dial in dials}
    return targets == {target for (target, _), good in reached.items() if good}


def _lines(
    stream: Stream, deadline: float, is_over: Callable[[], bool] = lambda: False
) -> Iterator[str]:
    """Whole lines until the end of the stream, the deadline, or `is_over`."""
    rest = b""
    while time.monotonic() < deadline and not is_over():
        try:
            chunk = stream.read(timeout=0.1)
        except TimeoutError:
            continue
        if not chunk:
            return
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line.decode(errors="replace").strip() for line in whole)


# Judging


def _judge(machines: list[Machine], cluster: Cluster, here: Image | None) -> list[Finding]:
    """Every check that needs no more than what each machine said."""
    job = cluster.job
    alone = len(machines) == 1
    found: list[Finding] = []
    for machine in machines:
        found += engines.check_ssh(machine)
        found += engines.check_docker(machine)
        found += gpus.check_driver(machine)
        found += gpus.check_requested(machine, cluster)
        found += gpus.check_toolkit(machine)
        found += gpus.check_fabric_manager(machine)
        found += gpus.check_mig(machine)
        found += gpus.check_busy(machine)
        found += gpus.check_cuda(machine)
        found += images.check_architecture(machine, here)
        found += resources.check_disk(machine, job)
        found += resources.check_memory(machine, job)
        found += resources.check_infiniband(machine, job)
        found += routes.check_interfaces(machine, alone=alone)
    found += gpus.check_alike(machines, cluster)
    found += images.check_image(machines, cluster, here)
    found += resources.check_clocks(machines, cluster)
    found += runs.check_master_port(machines, cluster)
    found += runs.check_leftovers(machines)
    return found
