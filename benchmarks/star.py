"""Measure the supervisors' star: node 0's real code in one process, all other nodes in another."""

from __future__ import annotations

import multiprocessing
import resource
import selectors
import tempfile
import time
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from launcher.supervisor import peers
from launcher.supervisor.channel import Status
from launcher.supervisor.events import Reason
from launcher.supervisor.journal import Journal
from launcher.supervisor.spec import Spec

STEADY = 10.0  # seconds
PORT = 29999


@dataclass(frozen=True)
class Star:
    """Measurements. cpu, heartbeats: those of node 0 in the steady state. Times are in seconds."""

    nodes: int
    joined: float  # until all nodes had joined
    cpu: float  # share of a core
    heartbeats: float  # per second
    told: float  # from a rank's failure until the last node knew about it
    over: float  # from told until the last node knew that all had stopped
    memory: int  # MB


def measure_star(nodes: int) -> Star:
    ours, theirs = multiprocessing.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        hub = multiprocessing.Process(target=_hub, args=(_spec(0, nodes, folder), theirs))
        hub.start()
        try:
            return _nodes(nodes, folder, ours)
        finally:
            hub.join(10)
            hub.kill()


def _spec(rank: int, nodes: int, folder: str) -> Spec:
    return Spec(
        run_id="scale", attempt=1, node_rank=rank, nnodes=nodes, nproc_per_node=1, first_rank=rank,
        host=f"host{rank}", hosts=[f"host{n}" for n in range(nodes if rank == 0 else 1)], argv=[],
        cwd=None, dir=folder, stop_timeout=60, master_addr="127.0.0.1",
        control_port=PORT, token="secret", checkpoint_dir=folder, output_dir=folder,
    )  # fmt: skip


def _hub(spec: Spec, pipe: Connection) -> None:
    selector = selectors.DefaultSelector()
    server = peers.Server(spec, Journal(spec.dir, spec.host), selector)
    report, received = server.coordinator.report, 0

    def counted(status: Status, now: float) -> None:
        nonlocal received
        received += status.node_rank != 0
        report(status, now)

    server.coordinator.report = counted  # type: ignore[method-assign]
    began, own = time.monotonic(), Status(0, alive=1)
    joined = steady = 0.0
    while not server.decision.over:
        for key, _ in selector.select(0.05):
            key.data(key.fileobj)
        server.turn(replace(own, phase="stopped", alive=0) if server.decision.verdict else own)
        now = time.monotonic()
        if not joined and len(server.coordinator.statuses) == spec.nnodes:
            joined, steady, received, cpu = now - began, now, 0, time.process_time()
        if steady and now - steady >= STEADY:
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            share = (time.process_time() - cpu) / (now - steady)
            pipe.send((joined, share, received / (now - steady), memory))
            steady = 0.0
    server.close()


def _nodes(nodes: int, folder: str, pipe: Connection) -> Star:
    selector, journal = selectors.DefaultSelector(), Journal(folder, "nodes")
    every = [peers.NodePeer(_spec(n, nodes, folder), journal, selector) for n in range(1, nodes)]
    status = {peer: Status(peer.spec.node_rank, alive=1) for peer in every}
    failed = told = 0.0
    found: Any = ()
    while not all(peer.decision.over for peer in every):
        for key, _ in selector.select(0.05):
            key.data(key.fileobj)
        for peer in every:
            if peer.decision.verdict and status[peer].phase == "running":
                status[peer] = replace(status[peer], phase="stopped", alive=0)
            peer.turn(status[peer])
        if failed and not told and all(peer.decision.verdict for peer in every):
            told = time.monotonic() - failed
        if not failed and pipe.poll():
            found, failed = pipe.recv(), time.monotonic()
            victim = every[nodes // 2]
            reason = Reason("rank-failed", "exited with code 1", victim.spec.node_rank)
            status[victim] = replace(status[victim], phase="stopped", reason=reason, alive=0)
    joined, share, heartbeats, memory = found
    return Star(nodes, joined, share, heartbeats, told, time.monotonic() - failed, memory)
