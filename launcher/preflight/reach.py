"""The probe: an agent on each machine listens, dials the other machines and reports the results.

The agent runs on the host's python3, or on the one in the job's image. It installs nothing. It ends
when its standard input closes, or after a minute.

    agent -> launcher   listening 0 PORT, then ready
    launcher -> agent   listen PORT
    agent -> launcher   listening PORT PORT (not if the port is taken), then ready
    launcher -> agent   dial KEY ADDRESS PORT
    agent -> launcher   dialed KEY ok NAME SECONDS | dialed KEY wrong|refused|timeout|unreachable

An address counts as reached only if the intended machine's agent answers there: every host with a
docker0 has the address 172.17.0.1, and reaches itself there.
"""

import contextlib
import queue
import re
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from ..engines.choose import container_engine
from ..errors import DdpctlError
from ..hosts import Cluster
from ..ssh.node import Node
from ..ssh.stream import Deadline, Stream
from .inventory import Answer, Machine, Reach
from .reach_routes import Dial, confirmed, dials_for, is_settled, reach_of

AGENT_TIMEOUT = 20.0  # seconds until an agent listens; starting a container takes longest
ROUND_TIMEOUT = 12.0  # seconds; a dial fails after three, so a slower agent is overloaded
GRACE = 0.3  # seconds for better addresses to answer once every machine was reached
LONGEST_LINE = 4096  # bytes
NEVER = Deadline(None)
DIAL_TIMEOUT = 3.0  # seconds; a firewall that drops packets never answers

PYTHON = r"""
import errno, os, socket, sys, threading, time
name, token = sys.argv[1:3]
lock = threading.Lock()
def report(*words):
    with lock:
        sys.stdout.write(" ".join(map(str, words)) + "\n"); sys.stdout.flush()
def greet(peer):
    try:
        peer.settimeout(10); peer.sendall(("%s %s\n" % (token, name)).encode())
        peer.recv(1)  # the dialler closes first: a port that this side closes stays taken for a minute
    except OSError:
        pass
    peer.close()
def serve(listener):
    while True:
        peer = listener.accept()[0]
        threading.Thread(target=greet, args=(peer,), daemon=True).start()
def listen(asked):
    port, listeners = asked, []
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            s = socket.socket(family, socket.SOCK_STREAM)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            s.bind((address, port)); s.listen(128)
            port = s.getsockname()[1]; listeners.append(s)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                for s in listeners: s.close()
                listeners = []
                break
    for s in listeners:
        threading.Thread(target=serve, args=(s,), daemon=True).start()
    if listeners: report("listening", asked, port)
    report("ready")
def dial(key, address, port):
    began = time.time()
    try:
        s = socket.create_connection((address, int(port)), timeout=TIMEOUT)
        s.settimeout(TIMEOUT)
        words = s.makefile().readline().split()
        s.close()
        if len(words) == 2 and words[0] == token:
            report("dialed", key, "ok", words[1], "%.3f" % (time.time() - began))
        else: report("dialed", key, "wrong")
    except socket.timeout: report("dialed", key, "timeout")
    except ConnectionRefusedError: report("dialed", key, "refused")
    except OSError as error:
        report("dialed", key, "timeout" if error.errno == errno.ETIMEDOUT else "unreachable")
limit = threading.Timer(60, os._exit, (1,)); limit.daemon = True; limit.start()
listen(0)
for line in sys.stdin:
    words = line.split()
    if words[:1] == ["listen"]: listen(int(words[1]))
    if words[:1] == ["dial"]: threading.Thread(target=dial, args=words[1:4], daemon=True).start()
os._exit(0)
""".replace("TIMEOUT", str(DIAL_TIMEOUT))

SHELL = r"""
program=$1 name=$2 token=$3; shift 3 # what is left runs python3 in the job's image
for p in python3 /usr/libexec/platform-python; do
  if "$p" -ISc 'import socket, threading' 2>/dev/null; then
    exec "$p" -ISc "$program" "$name" "$token"
  fi
done
[ $# -eq 0 ] || exec "$@" -ISc "$program" "$name" "$token"
"""


class Probe:
    """Starts an agent per machine, then lets them dial each other. Close it at the end."""

    def __init__(self, cluster: Cluster) -> None:
        self._job = cluster.job
        self._token = secrets.token_hex(8)
        self._agents: dict[int, Stream] = {}
        self._ports: dict[int, int] = {}  # on which agents listen, by rank
        self._master_port = 0  # on which node 0's agent listens too; 0 if it does not
        self._orders: dict[int, Dial] = {}  # by key, for all rounds
        self._inbox: queue.SimpleQueue[tuple[int, Answer]] = queue.SimpleQueue()

    def start(self, rank: int, node: Node) -> None:
        """Start the agent of the machine with this first node rank, if one can run there."""
        engine = container_engine(node, self._job.engine)
        in_image = engine.python_in_image(self._job.image) if engine else ()
        with contextlib.suppress(DdpctlError):  # the facts of the machine show the reason
            agent = node.open_script(SHELL, PYTHON, str(rank), self._token, *in_image)
            if port := _listening(agent).get(0):
                self._agents[rank], self._ports[rank] = agent, port
            else:
                agent.close()

    def run(self, seen: Sequence[Machine], *, all_pairs: bool) -> Reach:
        """Find out which machines reach each other, and at which addresses.

        All dial the first, and some dial the others. With all_pairs or after a failure, all dial all.
        """
        machines = {m.rank: m for m in seen if m.rank in self._agents}
        port = self._job.master_port
        if port != "auto" and 0 in self._agents:  # the checks find out if it is taken
            with contextlib.suppress(DdpctlError, OSError):
                self._agents[0].write(f"listen {port}\n".encode())
                self._master_port = _listening(self._agents[0]).get(port, 0)
        for rank, agent in self._agents.items():
            threading.Thread(target=self._receive, args=(rank, agent), daemon=True).start()
        dials = dials_for(machines, master_port=self._master_port != 0, everyone=all_pairs)
        answers = self._round(dials)
        if not is_settled(dials, answers):
            every = dials_for(machines, master_port=self._master_port != 0, everyone=True)
            answers |= self._round([dial for dial in every if dial not in answers])
            answers = confirmed(answers, self._round)
        return reach_of(machines, (m.rank for m in seen), answers)

    def close(self) -> None:
        for agent in self._agents.values():
            agent.close()

    def _round(self, dials: Sequence[Dial]) -> dict[Dial, Answer]:
        """Run the dials and return their answers.

        Ends early once every target was reached, and then counts missing answers as timeouts.
        Otherwise it counts them as silent.
        """
        keys = dict(enumerate(dials, start=len(self._orders)))
        self._orders |= keys
        orders = dict.fromkeys(self._agents, "")
        for key, dial in keys.items():
            port = self._master_port if dial.is_master_port else self._ports[dial.target]
            orders[dial.source] += f"dial {key} {dial.address} {port}\n"
        for rank, agent in self._agents.items():
            with contextlib.suppress(DdpctlError, OSError):  # its dials count as silent
                agent.write(orders[rank].encode(), timeout=ROUND_TIMEOUT)
        answers: dict[Dial, Answer] = {}
        deadline, missing = time.monotonic() + ROUND_TIMEOUT, "silent"
        while len(answers) < len(dials) and (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                key, answer = self._inbox.get(timeout=min(left, GRACE))
                if key in keys:  # not a late answer to an earlier round
                    answers[keys[key]] = answer
            if missing == "silent" and self._inbox.empty() and is_settled(dials, answers):
                deadline, missing = min(deadline, time.monotonic() + GRACE), "timeout"
        return {dial: answers.get(dial, Answer(missing)) for dial in dials}

    def _receive(self, rank: int, agent: Stream) -> None:
        with contextlib.suppress(DdpctlError, OSError):  # missing answers count as silent
            for line in _lines(agent):
                if answer := parse_dialed(line, self._orders, rank):
                    self._inbox.put(answer)


def _listening(agent: Stream) -> dict[int, int]:
    """Wait until the agent is ready. Return the ports it listens on, by the port asked for."""
    ports: dict[int, int] = {}
    with contextlib.suppress(OSError):
        for line in _lines(agent, Deadline(AGENT_TIMEOUT)):
            if line == "ready":
                break
            if found := parse_listening(line):
                ports[found[0]] = found[1]
    return ports


def _lines(stream: Stream, deadline: Deadline = NEVER) -> Iterator[str]:
    """Yield lines until the stream ends or a line is too long. Raises TimeoutError at the deadline."""
    rest = b""
    while len(rest) < LONGEST_LINE and (chunk := stream.read(timeout=deadline.left())):
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line.decode(errors="replace").strip() for line in whole)


def parse_listening(line: str) -> tuple[int, int] | None:
    """Parse a `listening` line into the requested port and the actual one."""
    match = re.fullmatch(r"listening (\d{1,5}) (\d{1,5})", line, re.ASCII)
    return (int(match[1]), int(match[2])) if match else None


def parse_dialed(line: str, orders: Mapping[int, Dial], rank: int) -> tuple[int, Answer] | None:
    """Parse a `dialed` line into the key of one of this agent's orders and the answer."""
    match = re.fullmatch(
        r"dialed (\d{1,9}) (?:(wrong|refused|timeout|unreachable)|ok (\d{1,9}) (\d{1,3}\.\d{3}))",
        line,
        re.ASCII,
    )
    dial = orders.get(int(match[1])) if match else None
    if match is None or dial is None or dial.source != rank:
        return None
    if match[2]:
        return int(match[1]), Answer(match[2])
    result = "ok" if int(match[3]) == dial.target else "wrong"
    return int(match[1]), Answer(result, float(match[4]))
