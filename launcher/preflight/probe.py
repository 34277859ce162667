"""The probe: an agent on each machine listens, dials the other machines and reports the results.

The agent runs with the host's python3, or with the one in the job's image.
"""

import contextlib
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from ..budget import Deadline
from ..engines.choose import engine_of
from ..errors import DdpctlError
from ..hosts import Job
from ..ssh.background import in_background
from ..ssh.host_connection import HostConnection
from ..ssh.script_files import load_script
from ..ssh.stream import Stream
from .machine import Machine
from .reach import Dial, DialResult, Reach, addresses_to_dial, dials_to, dials_to_rails

START_AGENT = load_script(__file__, "start_agent.sh")
AGENT = Path(__file__).with_name("probe_agent.py").read_text()
AGENT_TIMEOUT = 20.0  # seconds until an agent listens; starting a container takes longest
ROUND_TIMEOUT = 20.0  # seconds; a dial takes at most 12, so a slower agent is overloaded
LONGEST_LINE = 4096  # bytes


class Probe:
    """Starts one agent per machine and tells the agents what to dial. Close it to stop them."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._token = secrets.token_hex(8)
        self._agents: dict[int, Stream] = {}  # by the machine's first node rank
        self._ports: dict[int, int] = {}  # the ports that the agents listen on, by the same rank
        self._unfinished: set[int] = set()  # machines whose agent did not report in time

    def start(self, rank: int, connection: HostConnection) -> None:
        """Start an agent on the machine with this first node rank, if one can run there."""
        with contextlib.suppress(Exception):  # the facts of the machine show the reason
            in_image = engine_of(connection, self._job.engine).python_in_image(self._job.image)
            agent = connection.open_script(START_AGENT, AGENT, str(rank), self._token, *in_image)
            if port := _listen(agent, 0):
                self._agents[rank], self._ports[rank] = agent, port
            else:
                agent.close()

    def run(self, machines: Sequence[Machine]) -> Reach:
        """Find out and return at which addresses the machines reach each other.

        Every machine dials the best address of every other machine. If one of these dials fails,
        all machines also dial its target's other addresses. Then they dial node 0's master port.
        At the end, each RoCE port is dialed by one other machine.
        """
        if len(machines) < 2:
            return Reach()
        probed = [machine for machine in machines if machine.rank in self._agents]
        addresses = addresses_to_dial(machines)
        best = {target: ips[:1] for target, ips in addresses.items()}
        results = self._dial(dials_to(best, probed))
        failed = {dial.target for dial, result in results.items() if not result.ok}
        others = {target: addresses[target][1:] for target in failed}
        results |= self._dial(dials_to(others, probed))
        master, port = {}, self._job.master_port
        # node 0's agent cannot listen on a port that is taken; `check_master_port` reports it
        if port != "auto" and 0 in self._agents and _listen(self._agents[0], port):
            master = self._dial([dial for dial in results if dial.target == 0], port)
        results |= self._dial([dial for dial in dials_to_rails(probed) if dial not in results])
        unprobed = {machine.rank for machine in machines} - self._agents.keys()
        return Reach(results, frozenset(unprobed), frozenset(self._unfinished), master)

    def close(self) -> None:
        for agent in [*self._agents.values()]:
            agent.close()

    def _dial(self, dials: Sequence[Dial], port: int = 0) -> dict[Dial, DialResult]:
        """Have the agents dial, and return their results. port: the port to dial; 0: the agent's own."""
        by_source: dict[int, list[Dial]] = {}
        for dial in dials:
            if dial.source not in self._unfinished:
                by_source.setdefault(dial.source, []).append(dial)
        reports = [in_background(partial(self._order, *o, port)) for o in by_source.items()]
        return {dial: result for report in reports for dial, result in report.result().items()}

    def _order(self, source: int, dials: Sequence[Dial], port: int) -> dict[Dial, DialResult]:
        """Order an agent to dial. Return the results that arrive in time."""
        results: dict[Dial, DialResult] = {}
        orders = [
            f"dial {key} {dial.ip} {port or self._ports[dial.target]}"
            for key, dial in enumerate(dials)
        ]
        try:
            for line in _answers(self._agents[source], orders, ROUND_TIMEOUT):
                results |= parse_dialed(line, dials)
                if len(results) == len(dials):
                    return results
        except Exception:  # an agent that reports nonsense has not finished
            pass
        self._unfinished.add(source)
        return results


def _listen(agent: Stream, port: int) -> int:
    """Have the agent listen on this port (0: any). Return the actual port, or 0 if it could not.

    An impossible port number counts as 0, because the other agents could not dial it.
    """
    answer = re.compile(rf"listening {port} (\d{{1,5}})", re.ASCII)
    with contextlib.suppress(DdpctlError, OSError):
        for line in _answers(agent, [f"listen {port}"], AGENT_TIMEOUT):
            if match := answer.fullmatch(line):
                return actual if (actual := int(match[1])) < 1 << 16 else 0
    return 0


def _answers(agent: Stream, orders: Sequence[str], timeout: float) -> Iterator[str]:
    """Send the orders to the agent. Yield its lines until the caller has read enough.

    Raises OSError or DdpctlError if the agent ends, writes too long a line or takes too long.
    """
    deadline = Deadline(timeout)
    agent.write("".join(f"{order}\n" for order in orders).encode(), timeout=timeout)
    rest = b""
    while deadline.left() and len(rest) < LONGEST_LINE:
        chunk = agent.read(timeout=deadline.left())
        if not chunk:
            break
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace").strip()
    raise TimeoutError("the agent did not finish")


def parse_dialed(line: str, dials: Sequence[Dial]) -> Mapping[Dial, DialResult]:
    """Return the dial that a `dialed` line is about, with its result; empty for any other line."""
    match = re.fullmatch(
        r"dialed (\d{1,9}) (?:(wrong|refused|timeout|unreachable)|ok (\d{1,9}) (\d{1,3}\.\d{3}))",
        line,
        re.ASCII,
    )
    if match is None or int(match[1]) >= len(dials):
        return {}
    dial = dials[int(match[1])]
    if match[2]:
        return {dial: DialResult(match[2])}
    outcome = "ok" if int(match[3]) == dial.target else "wrong"
    return {dial: DialResult(outcome, float(match[4]))}
