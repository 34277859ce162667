"""Supervisors on this machine: their inputs, and real ones, one per node, each with a torchrun."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from quick_torchrun import python_with_quick_torchrun

from launcher.diagnosis.evidence import Evidence, NodeEvidence
from launcher.diagnosis.first_failure import first_failure
from launcher.failure import FirstFailure
from launcher.logs.journal_reader import JournalReader
from launcher.logs.log_entry import LogEntry, OutputLines, events_in, output_in
from launcher.plan.supervisor_spec import BUNDLE, ISOLATED
from launcher.start.fill_node_folders import supervisor_file
from launcher.supervisor.channel import Status
from launcher.supervisor.events import Clock, End, Event, RankPids, Reason
from launcher.supervisor.spec import Spec

E = TypeVar("E", bound=Event)

WITH_TORCH = sys.executable  # its torchrun is the real one, which takes seconds to start
NPROC = 2
SCRIPT = Path(__file__).with_name("ranks.py")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def spec(**given: Any) -> Spec:
    known = dict.fromkeys(Spec.__annotations__) | vars(Spec)
    fields = {name: known[name] for name in Spec.__annotations__}
    nodes = {"nnodes": 2, "node_rank": 0, "nproc_per_node": 2, "first_rank": 0, "host": "gpu1"}
    nodes |= dict.fromkeys(("checkpoint_dir", "output_dir"), "/nowhere")
    return Spec(**{**fields, **nodes, "hosts": ["gpu1", "gpu2", "gpu3"], **given})


def status(node_rank: int, **given: Any) -> Status:
    return replace(Status(node_rank, alive=2), **given)


def why(kind: str, node_rank: int, time: float) -> Reason:
    return Reason(kind, "exited with code 7", node_rank, f"gpu{node_rank + 1}", time)


@dataclass
class Node:
    """A node: one supervisor on this machine."""

    node_rank: int
    folder: Path
    spec: dict[str, Any]
    python: str
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        (self.folder / "spec.json").write_text(json.dumps(self.spec))
        (self.folder / BUNDLE).write_bytes(supervisor_file())
        env = {**os.environ, "DDPCTL_RUN_ID": self.spec["run_id"], "OMP_NUM_THREADS": "1"}
        env["DDPCTL_CHECKPOINT_DIR"] = self.spec["checkpoint_dir"]
        Path(self.spec["checkpoint_dir"]).mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [self.python, *ISOLATED, str(self.folder / BUNDLE), str(self.folder / "spec.json")],
            stdin=subprocess.DEVNULL,
            stdout=(self.folder / "stdout").open("wb"),
            env=env,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def entries(self) -> list[LogEntry]:
        with contextlib.suppress(FileNotFoundError):
            return JournalReader().feed((self.folder / "journal").read_bytes())
        return []

    def output(self) -> list[OutputLines]:
        """Return each line in an OutputLines of its own."""
        return [r._replace(lines=[line]) for r in output_in(self.entries()) for line in r.lines]

    def events(self, kind: type[E]) -> list[tuple[float, E]]:
        found = events_in(self.entries())
        return [(time, event) for time, event in found if isinstance(event, kind)]

    def event(self, kind: type[E]) -> E:
        """Return the only event of its kind."""
        [(_, event)] = self.events(kind)
        return event

    @property
    def end(self) -> End:
        return self.event(End)

    @property
    def reason(self) -> Reason:
        assert self.end.reason
        return self.end.reason

    def lines(self, rank: int | None) -> list[bytes]:
        return [each.lines[0] for each in self.output() if each.rank == rank]

    def wait(self, timeout: float = 60.0) -> int:
        assert self.process is not None
        return self.process.wait(timeout)

    def rank_pids(self) -> dict[int, int]:
        events = self.events(RankPids)
        return {int(rank): pid for rank, pid in events[-1][1].pids.items()} if events else {}


@dataclass
class Attempt:
    """An attempt that starts its nodes and kills whatever they leave behind.

    python: runs the supervisors. Its torchrun starts the ranks; by default, that is one without torch.
    """

    folder: Path
    nodes: list[Node] = field(default_factory=list)
    python: str = ""
    script: Path = SCRIPT

    def __post_init__(self) -> None:
        self.python = self.python or python_with_quick_torchrun(self.folder)

    def add(self, count: int, command: Sequence[str], **spec: Any) -> list[Node]:
        """Add `count` nodes that will run ranks.py COMMAND, without starting them."""
        port, control = free_port(), free_port()
        for rank in range(count):
            folder = self.folder / f"node-{rank}"
            folder.mkdir(parents=True)
            topology = ["--nnodes", str(count), "--node-rank", str(rank)]
            master = ["--master-addr", "127.0.0.1", "--master-port", str(port)]
            argv = ["torchrun", *topology, "--nproc-per-node", str(NPROC), *master]
            argv += ["--max-restarts", "0", "--", str(self.script), *command]
            known = {
                "run_id": f"test-{os.getpid()}-{control}",
                "attempt": 1,
                "node_rank": rank,
                "nnodes": count,
                "nproc_per_node": NPROC,
                "first_rank": NPROC * rank,
                "host": f"gpu{rank + 1}",
                "hosts": [f"gpu{n + 1}" for n in range(count)],
                "argv": argv,
                "cwd": None,
                "dir": str(folder),
                "stop_timeout": 10,
                "master_addr": "127.0.0.1",
                "control_port": control,
                "token": "a run's secret",
                "hang_timeout": None,
                "checkpoint_dir": str(folder / "checkpoints"),
                "output_dir": str(folder / "output"),
            }
            self.nodes.append(Node(rank, folder, {**known, **spec}, self.python))
        return self.nodes

    def start(self) -> list[Node]:
        for node in self.nodes:
            node.start()
        return self.nodes

    def ranks_running(self) -> dict[int, int]:
        """Return the pid of each rank, once all ranks say that they work and all nodes have joined."""
        expected = NPROC * len(self.nodes)

        def working() -> bool:
            joined = all(
                node.events(Clock) for node in self.nodes[1:]
            )  # with node 0's first answer
            lines = (b"working" in n.lines(r) for n in self.nodes for r in range(expected))
            return joined and sum(lines) == expected

        until(working, 60)
        return {rank: pid for node in self.nodes for rank, pid in node.rank_pids().items()}

    def wait(self) -> list[int]:
        return [node.wait() for node in self.nodes]

    def cause(self, **facts: Any) -> FirstFailure | None:
        """Return the cause. facts: from the engine, such as node-<K>_exit_code (see NodeEvidence)."""
        return first_failure(
            Evidence(NPROC * len(self.nodes), [evidence_of(n, facts) for n in self.nodes])
        )

    def survivors(self) -> list[int]:
        """Return the processes of the run, whoever their parents are now."""
        mark = f"DDPCTL_RUN_ID={self.nodes[0].spec['run_id']}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z" and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found

    def close(self) -> None:
        for pid in self.survivors():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for node in self.nodes:
            if node.process:
                node.process.wait(10)


def evidence_of(node: Node, facts: dict[str, Any]) -> NodeEvidence:
    return NodeEvidence(
        node.node_rank,
        node.spec["host"],
        events=events_in(node.entries()),
        newest_lines=node.output()[-400:],
        **facts.get(f"node_{node.node_rank}", {}),
    )


@contextlib.contextmanager
def attempt(
    folder: Path, count: int, command: Sequence[str], python: str = "", **spec: Any
) -> Iterator[Attempt]:
    """Context manager: an attempt, of which nothing is left at the end."""
    made = Attempt(folder, python=python)
    made.add(count, command, **spec)
    try:
        made.start()
        yield made
    finally:
        made.close()


def until(true: Callable[[], bool], timeout: float) -> float:
    """Wait, and return the seconds that it took. Fail the test if it takes longer than `timeout`."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < timeout, "it did not come true in time"
        time.sleep(0.02)
    return time.monotonic() - began
