"""Each machine tries to reach each other one: the agents of `probe` started, told and heard."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from launcher.errors import DdpctlError
from launcher.hosts import Cluster
from launcher.preflight import reach_routes
from launcher.preflight.findings import Finding, warning
from launcher.preflight.machine import Machine
from launcher.preflight.reach_agent import SHELL, Dial, agent_args, parse_answer, parse_ready
from launcher.ssh.node import Node
from launcher.ssh.stream import Stream

AGENT_TIMEOUT = 10.0  # seconds until an agent listens; a container takes the longest
ANSWERS_TIMEOUT = 12.0  # an agent says `timeout` after three; beyond it the machine is busy
GRACE = 0.3  # seconds for slower answers once every machine is known to be reached


@dataclass(frozen=True)
class _Agent:
    machine: int
    stream: Stream
    listening: dict[int, int]  # asked port -> actual port


class Probing:
    """One probe: agents are started while the machines are looked at, and told to dial after it."""

    def __init__(self, cluster: Cluster) -> None:
        self._job = cluster.job
        self._token = secrets.token_hex(8)
        self._agents: list[_Agent] = []
        self._answers: dict[Dial, str] = {}
        self._changed = threading.Condition()
        self._over = False

    def start(self, index: int, node: Node) -> None:
        """An agent on one machine, where one can be had. `index`: the machine's place."""
        in_image = self._job.image if self._job.engine == "docker" else ""
        try:
            stream = node.open_script(SHELL, *agent_args(index, self._token, [0], in_image))
        except DdpctlError:
            return  # whoever looks at the machine says why
        listening = _doors(stream)
        if not listening:
            stream.close()
            return
        with self._changed:
            self._agents.append(_Agent(index, stream, listening))

    def run(self, machines: Sequence[Machine]) -> tuple[dict[Dial, str], list[Finding]]:
        """What every dial met, and a warning for each machine that could not take part."""
        first = next(i for i, machine in enumerate(machines) if 0 in machine.ranks)
        self._take_master_port(first)
        listening = {agent.machine: agent.listening for agent in self._agents}
        able = [
            machine if index in listening else dataclasses.replace(machine, facts=None)
            for index, machine in enumerate(machines)
        ]
        port = self._job.master_port
        tries_master = port != "auto" and int(port) in listening.get(first, {})
        dials = reach_routes.dials_for(able, tries_master)
        master_port = int(port) if tries_master else 0
        with ThreadPoolExecutor(len(self._agents) or 1) as pool:
            for agent in self._agents:
                pool.submit(self._dial, agent, dials, listening, master_port)
            answers = self._wait(dials)
        unable = [
            warning(
                machine.name,
                "network",
                "whether the other hosts reach it was not tried: no python3, perl or image there",
                "`ddpctl push HOSTS --image` first, or install perl",
            )
            for index, machine in enumerate(machines)
            if machine.facts is not None and index not in listening
        ]
        return answers, unable

    def close(self) -> None:
        self._over = True
        for agent in self._agents:
            agent.stream.close()

    def _take_master_port(self, first: int) -> None:
        """Only now: while the machine was looked at, it would have been seen there as taken."""
        port = self._job.master_port
        for agent in self._agents:
            if agent.machine == first and port != "auto":
                with contextlib.suppress(DdpctlError, OSError):
                    agent.stream.write(f"listen {port}\n".encode())
                    agent.listening.update(_doors(agent.stream) or {})

    def _dial(
        self,
        agent: _Agent,
        dials: Sequence[Dial],
        listening: Mapping[int, Mapping[int, int]],
        master_port: int,
    ) -> None:
        """Tells one agent what to try and takes in what it says."""
        told = []
        for key, dial in enumerate(dials):
            ports = listening.get(dial.target, {})
            port = master_port if dial.is_master_port else ports.get(0, 0)
            if dial.source == agent.machine:
                told.append(f"dial {key} {dial.address} {port}\n")
        try:
            agent.stream.write("".join([*told, "go\n"]).encode())
            for line in _lines(agent.stream, time.monotonic() + ANSWERS_TIMEOUT, self._is_over):
                answer = parse_answer(line, dials)
                with self._changed:
                    if answer is not None:
                        self._answers[answer[0]] = answer[1]
                        self._changed.notify_all()
                if line == "done":
                    return
        except (DdpctlError, OSError):
            return  # what it did not say counts as a timeout

    def _wait(self, dials: Sequence[Dial]) -> dict[Dial, str]:
        """What every dial met. One that nobody has told of when the others suffice is a timeout;
        one that nobody tells of at all is silent, which says nothing about the way."""
        deadline, missing = time.monotonic() + ANSWERS_TIMEOUT, "silent"
        with self._changed:
            while len(self._answers) < len(dials) and (left := deadline - time.monotonic()) > 0:
                if missing == "silent" and _is_enough(self._answers, dials):
                    deadline, missing = min(deadline, time.monotonic() + GRACE), "timeout"
                self._changed.wait(min(left, GRACE))
            self._over = True
            return {dial: self._answers.get(dial, missing) for dial in dials}

    def _is_over(self) -> bool:
        return self._over


def _doors(stream: Stream) -> dict[int, int] | None:
    """What an agent says that it listens on, by the port that was asked for."""
    lines: list[str] = []
    try:
        for line in _lines(stream, time.monotonic() + AGENT_TIMEOUT):
            lines.append(line)
            if line == "ready":
                break
    except (DdpctlError, TimeoutError):
        return None
    return parse_ready(lines)


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
