"""The program that `ddpctl sanity` runs on every rank. Needs only torch in the image.

It is sent to the hosts as the code of a run; the launcher never imports it. Rank 0 prints results
as lines `@sanity {json}` of the kinds mesh, world, right, size, pair, late and done.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import functools
import itertools
import json
import os
import re
import socket
import statistics
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

MARK = "@sanity "
CONNECT_TIMEOUT = 4.0  # seconds for a connection to another node's data port
WARMUP = 3
MEASURE_SECONDS = 0.4  # seconds per size, for at least three rounds
MAX_ROUNDS = 20
PAIR_BYTES = 4 << 20
PAIR_ROUNDS = 3
SIOCGIFADDR = 0x8915
SILENCE = 1.5  # seconds without a heartbeat until a rank counts as dead


class Job:
    """This rank, and the options of the check."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.rank = int(os.environ["RANK"])
        self.world = int(os.environ["WORLD_SIZE"])
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.per_node = int(os.environ["LOCAL_WORLD_SIZE"])
        self.node = self.rank // self.per_node
        self.nodes = self.world // self.per_node
        self.timeout = options["timeout"]
        self.max_bytes = options["max_bytes"]
        self.pairwise = options["pairwise"]
        self.cuda = torch.cuda.is_available()
        self.device = torch.device("cuda", self.local_rank) if self.cuda else torch.device("cpu")
        self.store: Any = None

    def report(self, kind: str, **fields: Any) -> None:
        if self.rank == 0:
            print(MARK + json.dumps({"kind": kind, **fields}), flush=True)


class Watchdog:
    """Ends the process if one step takes too long. Rank 0 first reports which ranks did not arrive."""

    def __init__(self, job: Job) -> None:
        self.job, self.act, self.number = job, "", 0
        self.deadline: float | None = None
        threading.Thread(target=self._send_heartbeats, daemon=True).start()
        threading.Thread(target=self._check_deadline, daemon=True).start()

    def begin(self, act: str) -> None:
        self.number += 1
        self.act = act
        self.job.store.set(f"at/{self.number}/{self.job.rank}", act)
        self.deadline = time.monotonic() + self.job.timeout

    def end(self) -> None:
        self.deadline = None

    def _check_deadline(self) -> None:
        while True:
            time.sleep(0.1)
            deadline = self.deadline
            if deadline is None or time.monotonic() < deadline:
                continue
            if self.job.rank == 0:
                self._report_late()
            else:
                time.sleep(2 * SILENCE)  # rank 0 reports first
            os._exit(3)

    def _send_heartbeats(self) -> None:
        """Send heartbeats on their own connection: a store connection handles one call at a time."""
        store = connect(self.job)
        with contextlib.suppress(RuntimeError):  # the store is gone, and so is the run
            for count in itertools.count():
                store.set(f"alive/{self.job.rank}", str(count))
                time.sleep(SILENCE / 6)

    def _report_late(self) -> None:
        """Report the ranks that did not start the step or, if all did, those that stopped during it."""
        how = "did not arrive at"
        late = [r for r in range(self.job.world) if not self._arrived(r)]
        if not late:
            how, store, ranks = "stopped responding in", connect(self.job), range(self.job.world)
            before = [store.get(f"alive/{r}") for r in ranks]
            time.sleep(SILENCE)
            late = [r for r in ranks if store.get(f"alive/{r}") == before[r]]
        self.job.report("late", act=self.act, how=how, ranks=late, nodes=nodes_of(self.job, late))

    def _arrived(self, rank: int) -> bool:
        try:
            return bool(self.job.store.check([f"at/{self.number}/{rank}"]))
        except Exception:
            return False


def connect(job: Job) -> Any:
    """Open another connection to torchrun's store on node 0."""
    limit = datetime.timedelta(seconds=job.timeout)
    where = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    return dist.TCPStore(*where, job.world, False, limit)  # type: ignore[attr-defined]


def nodes_of(job: Job, ranks: list[int]) -> list[int]:
    return sorted({rank // job.per_node for rank in ranks})


def mesh(job: Job) -> bool:
    """Connect every node to every other by TCP, on the data addresses. Return whether all succeeded."""
    if job.local_rank == 0:
        server = socket.create_server(("", 0))
        job.store.set(f"mesh/{job.node}", f"{own_address()} {server.getsockname()[1]}")
        threading.Thread(target=accept, args=(server,), daemon=True).start()
        job.store.set(f"reached/{job.node}", json.dumps(unreached(job)))
    answers = [json.loads(job.store.get(f"reached/{n}")) for n in range(job.nodes)]
    if job.local_rank == 0:
        job.store.set(f"mesh-read/{job.node}", "1")
    # If the mesh failed, the ranks exit, and node 0 takes the store with it. So wait for all
    # readers.
    job.store.wait([f"mesh-read/{n}" for n in range(job.nodes)])
    failed = [one for answer in answers for one in answer]
    job.report("mesh", failed=failed)
    return not failed


def unreached(job: Job) -> list[dict[str, Any]]:
    """Return the nodes that this one cannot connect to."""
    failed = []
    for other in range(job.nodes):
        if other != job.node:
            host, port = job.store.get(f"mesh/{other}").decode().split()
            try:
                socket.create_connection((host, int(port)), CONNECT_TIMEOUT).close()
            except OSError as error:
                failed.append(
                    {"source": job.node, "target": other, "address": host, "error": str(error)}
                )
    return failed


def own_address() -> str:
    """Return the address of the data interface, by default the interface towards node 0."""
    name = os.environ.get("GLOO_SOCKET_IFNAME", "")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        if name:
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
                return socket.inet_ntoa(answer[20:24])
            except OSError:
                pass
        probe.connect((os.environ["MASTER_ADDR"], 9))
        return str(probe.getsockname()[0])


def accept(server: socket.socket) -> None:
    """Accept connections until the rank ends."""
    while True:
        with contextlib.suppress(OSError):
            server.accept()[0].close()


def right(job: Job, watchdog: Watchdog) -> None:
    """Run each collective once on numbers with a known result."""
    n, mine, device = job.world, float(job.rank), job.device
    ones = torch.ones(1000, device=device)
    total = float(sum(range(n)))

    def all_reduce() -> bool:
        x = ones * mine
        dist.all_reduce(x)
        return bool((x == total).all())

    def all_gather() -> bool:
        rows = [torch.empty_like(ones) for _ in range(n)]
        dist.all_gather(rows, ones * mine)
        return all(bool((row == r).all()) for r, row in enumerate(rows))

    def reduce_scatter() -> bool:
        out = torch.empty(1000, device=device)
        parts = [ones * (mine + r) for r in range(n)]
        dist.reduce_scatter(out, parts)
        return bool((out == total + n * job.rank).all())

    def broadcast() -> bool:
        x = ones * (mine + 7)
        dist.broadcast(x, n - 1)
        return bool((x == n + 6).all())

    def point_to_point() -> bool:
        if n == 1:
            return True
        x = torch.empty_like(ones)
        sent = dist.isend(ones * mine, (job.rank + 1) % n)
        dist.recv(x, (job.rank - 1) % n)
        if sent is not None:
            sent.wait()
        return bool((x == (job.rank - 1) % n).all())

    for act in (all_reduce, all_gather, reduce_scatter, broadcast, point_to_point):
        name = act.__name__.replace("_", "-")
        watchdog.begin(name)
        try:
            verdict = "right" if act() else "WRONG"
        except (RuntimeError, ValueError, NotImplementedError) as error:
            if "support" not in str(error) and "mplement" not in str(error):
                raise
            verdict = "not offered"
        verdicts: list[Any] = [None] * n
        dist.all_gather_object(verdicts, verdict)
        watchdog.end()
        wrong = [r for r, word in enumerate(verdicts) if word == "WRONG"]
        job.report("right", collective=name, verdict="WRONG" if wrong else verdicts[0], ranks=wrong)


def sweep(job: Job, watchdog: Watchdog) -> None:
    """Measure all-reduce by size, as the slowest rank's mean seconds per round."""
    size = 8
    while size <= job.max_bytes:
        x = torch.ones(size // 4, device=job.device)
        watchdog.begin(f"all-reduce of {size} bytes")
        for _ in range(WARMUP):
            dist.all_reduce(x)
        seconds = timed(job, functools.partial(dist.all_reduce, x))
        watchdog.end()
        alg = size / seconds / 1e9
        bus = alg * 2 * (job.world - 1) / job.world
        job.report(
            "size", bytes=size, count=size // 4, type="float", seconds=seconds, algbw=alg, busbw=bus
        )
        size *= 4


def timed(job: Job, act: Callable[[], object]) -> float:
    one = once(job, act)
    rounds = torch.tensor([min(MAX_ROUNDS, max(3, int(MEASURE_SECONDS / max(one, 1e-6))))])
    rounds = rounds.to(job.device)
    dist.broadcast(rounds, 0)
    sync(job)
    began = time.perf_counter()
    for _ in range(int(rounds)):
        act()
    sync(job)
    slowest = torch.tensor([(time.perf_counter() - began) / int(rounds)], device=job.device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest)


def once(job: Job, act: Callable[[], object]) -> float:
    sync(job)
    began = time.perf_counter()
    act()
    sync(job)
    return time.perf_counter() - began


def sync(job: Job) -> None:
    if job.cuda:
        torch.cuda.synchronize()


def pairs(job: Job, watchdog: Watchdog) -> None:
    """Measure each pair of nodes alone, in both directions, between their first ranks.

    Runs through all pairs several times, so that a disturbance does not hit the same pair each
    time.
    """
    x = torch.ones(PAIR_BYTES // 4, device=job.device)
    rates: dict[tuple[int, int], list[float]] = {}
    for _ in range(PAIR_ROUNDS):
        for source, target in itertools.permutations(range(job.nodes), 2):
            watchdog.begin(f"node {source} to node {target}")
            seconds = one_way(job, x, source * job.per_node, target * job.per_node)
            dist.barrier()
            watchdog.end()
            rates.setdefault((source, target), []).append(PAIR_BYTES / seconds / 1e9)
    for (source, target), rounds in rates.items():
        gbs = statistics.median(rounds)
        job.report("pair", source=source, target=target, gbs=gbs, rounds=rounds)


def one_way(job: Job, x: torch.Tensor, source: int, target: int) -> float:
    """Return the seconds to move x once: the receiver's median of three, known to every rank."""
    seconds = []
    for number in range(4):
        dist.barrier()
        began = time.perf_counter()
        if job.rank == source:
            dist.send(x, target)
        elif job.rank == target:
            dist.recv(x, source)
        sync(job)
        if number:  # the first round sets up the connection
            seconds.append(time.perf_counter() - began)
    median = statistics.median(seconds)
    shared = torch.tensor([median if job.rank == target else 0.0], device=job.device)
    dist.all_reduce(shared)
    return float(shared)


def transports(job: Job) -> dict[str, int]:
    """Parse NCCL's log into the number of channels per transport."""
    if not job.cuda:
        return {"sockets (Gloo)": 1}
    found = Counter(
        transport(via)
        for path in Path("/tmp").glob(f"ddpctl-nccl.{job.local_rank}.*")
        for via in re.findall(r" via (\S+)", path.read_text(errors="replace"))
    )
    every: list[Any] = [None] * job.world
    dist.all_gather_object(every, found)
    return dict(sum(every, Counter()))


def transport(via: str) -> str:
    for word, name in (
        ("NET/IB", "InfiniBand"),
        ("NET/Socket", "sockets"),
        ("NET/", "network plugin"),
        ("P2P", "NVLink or PCIe peer to peer"),
        ("SHM", "shared memory"),
    ):
        if via.startswith(word):
            return name
    return via


def main() -> None:
    job = Job(json.loads(sys.argv[1]))
    if job.cuda:
        torch.cuda.set_device(job.local_rank)
        os.environ["NCCL_DEBUG"] = "INFO"
        os.environ["NCCL_DEBUG_SUBSYS"] = "INIT,NET,GRAPH"
        os.environ["NCCL_DEBUG_FILE"] = f"/tmp/ddpctl-nccl.{job.local_rank}.%h.%p"
    job.store = connect(job)
    watchdog = Watchdog(job)
    watchdog.begin("connecting")
    device = torch.cuda.get_device_name() if job.cuda else "CPU"
    device += f", torch {torch.__version__}"
    job.report("world", nodes=job.nodes, ranks=job.world, device=device)
    if not mesh(job):
        watchdog.end()
        time.sleep(0.5)  # lets the report be read before torchrun ends the ranks
        os._exit(4)
    dist.init_process_group(
        "nccl" if job.cuda else "gloo", timeout=datetime.timedelta(seconds=10 * job.timeout)
    )
    dist.barrier()
    watchdog.end()
    right(job, watchdog)
    sweep(job, watchdog)
    if job.pairwise:
        pairs(job, watchdog)
    job.report("done", transports=transports(job))
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # a normal exit aborts if a thread is still in the store


if __name__ == "__main__":
    main()
