"""Each machine tries to reach each other one: the agents of `probe` started, told and heard."""

from __future__ import annotations

import dataclasses
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from launcher.errors import DdpctlError
from launcher.hosts import Cluster
from launcher.remote.node import Node, Stream

from . import routes
from .findings import Finding, warning
from .machine import Machine
from .probe import Dial, agent_argv, parse_answer, parse_ready

AGENT_TIMEOUT = 10.0  # seconds until an agent listens; a container takes the longest
ANSWERS_TIMEOUT = 12.0  # an agent says `timeout` after three; beyond it the machine is busy
GRACE = 0.3  # seconds for slower answers once every machine is known to be reached


def probe(
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
        """What every dial met. One that nobody has told of when the others suffice is a timeout;
        one that nobody tells of at all is silent, which says nothing about the way."""
        deadline, missing = time.monotonic() + ANSWERS_TIMEOUT, "silent"
        with self.changed:
            while len(self.answers) < len(dials) and (left := deadline - time.monotonic()) > 0:
                if missing == "silent" and _is_enough(self.answers, dials):
                    deadline, missing = min(deadline, time.monotonic() + GRACE), "timeout"
                self.changed.wait(min(left, GRACE))
            self.over = True
            return {dial: self.answers.get(dial, missing) for dial in dials}

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
