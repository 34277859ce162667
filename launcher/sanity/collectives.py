"""The program that `ddpctl sanity` runs on every rank. Needs only torch in the image.

It is sent to the hosts as the code of a run; the launcher never imports it. Rank 0 prints results
as lines `@sanity {json}`, whose kinds are mesh, world, right, size, pair, late and done. It needs
Python 3.8 or newer.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import functools
import itertools
import json
import math
import os
import re
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

MARK = "@sanity "
CONNECT_TIMEOUT = 4.0  # seconds for a connection to another node
WARMUP = 3  # rounds
MEASURE_SECONDS = 0.4  # per size, but at least three rounds
MAX_ROUNDS = 20
PAIR_BYTES = 4 << 20
PAIR_ROUNDS = 3
SIOCGIFADDR = 0x8915
SILENCE = 1.5  # seconds without a heartbeat after which a rank counts as dead
TRANSPORTS = {  # by the prefix of the word after `via` in NCCL's log
    "NET/IB": "InfiniBand",
    "NET/Socket": "sockets",
    "NET/": "network plugin",
    "P2P": "NVLink or PCIe peer-to-peer",
    "SHM": "shared memory",
}


class ThisRank:
    """This rank and the options of the check. A step that takes too long ends the process."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.rank = int(os.environ["RANK"])
        self.world = int(os.environ["WORLD_SIZE"])
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.node = int(os.environ["GROUP_RANK"])
        self.nodes = int(os.environ["GROUP_WORLD_SIZE"])
        self.options, self.timeout = options, options["timeout"]
        self.cuda = torch.cuda.is_available()
        self.device = torch.device("cuda", self.local_rank) if self.cuda else torch.device("cpu")
        self.store = self._connect()
        first, count = self.rank - self.local_rank, int(os.environ["LOCAL_WORLD_SIZE"])
        self.store.set(f"ranks/{self.node}", f"{first} {first + count}")
        self._act, self._number, self._deadline = "", 0, math.inf
        threading.Thread(target=self._watch, daemon=True).start()

    def report(self, kind: str, **fields: Any) -> None:
        if self.rank == 0:
            print(MARK + json.dumps({"kind": kind, **fields}), flush=True)

    def sync(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    @contextlib.contextmanager
    def step(self, act: str) -> Iterator[None]:
        """Context manager: run the body as a step of all ranks that must end within the timeout."""
        self._act, self._number = act, self._number + 1
        self.store.set(f"at/{self._number}/{self.rank}", act)
        self._deadline = time.monotonic() + self.timeout
        yield
        self._deadline = math.inf

    def ranks_of(self, node: int, store: Any) -> range:
        """Wait until a rank of the node has started, then return all ranks of the node.

        The nodes may have different numbers of ranks.
        """
        return range(*map(int, store.get(f"ranks/{node}").split()))

    def _connect(self) -> Any:
        """Return a new connection to torchrun's store on node 0."""
        limit = datetime.timedelta(seconds=self.timeout)
        where = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        return dist.TCPStore(*where, self.world, False, limit)  # type: ignore[attr-defined]

    def _watch(self) -> None:
        """Send heartbeats. After the deadline, report the late ranks (on rank 0) and exit."""
        store = self._connect()  # a store connection handles one call at a time
        for count in itertools.count():
            with contextlib.suppress(RuntimeError):  # the store is gone, because the run has ended
                store.set(f"alive/{self.rank}", str(count))
            time.sleep(SILENCE / 6)
            late = time.monotonic() - self._deadline
            if self.rank == 0 and late > 0:
                try:
                    self._report_late(store)
                finally:
                    os._exit(3)
            if late > 2 * SILENCE:  # rank 0 reports first
                os._exit(3)

    def _report_late(self, store: Any) -> None:
        """Report which ranks did not start the step or, if all did, which stopped during it."""
        ranks, how = range(self.world), "did not start"
        late = [rank for rank in ranks if not store.check([f"at/{self._number}/{rank}"])]
        if not late:
            how = "stopped responding in"
            before = [store.get(f"alive/{rank}") for rank in ranks]
            time.sleep(SILENCE)
            late = [rank for rank in ranks[1:] if store.get(f"alive/{rank}") == before[rank]]
        nodes = [
            node
            for node in range(self.nodes)
            if not store.check([f"ranks/{node}"])
            or not {*self.ranks_of(node, store)}.isdisjoint(late)
        ]
        self.report("late", act=self._act, how=how, ranks=late, nodes=nodes)


def mesh(me: ThisRank) -> bool:
    """Connect every node by TCP to the data address of every other node. Return whether all succeeded."""
    if me.local_rank == 0:
        family = socket.AF_INET6 if ":" in (address := own_address()) else socket.AF_INET
        # the kernel accepts the connections
        server = socket.create_server(("", 0), family=family, backlog=me.nodes)
        me.store.set(f"mesh/{me.node}", f"{address} {server.getsockname()[1]}")
        me.store.set(f"reached/{me.node}", json.dumps(unreached(me)))
    answers = [json.loads(me.store.get(f"reached/{n}")) for n in range(me.nodes)]
    if me.local_rank == 0:
        me.store.set(f"mesh-read/{me.node}", "1")
    # After a failure, the ranks exit and node 0's store ends, so wait until all have read.
    me.store.wait([f"mesh-read/{n}" for n in range(me.nodes)])
    failed = [one for answer in answers for one in answer]
    me.report("mesh", failed=failed)
    return not failed


def unreached(me: ThisRank) -> list[dict[str, Any]]:
    """Return the source, target, address and error of each failed connection of this node."""
    others = [node for node in range(me.nodes) if node != me.node]
    addresses = [me.store.get(f"mesh/{other}").decode().split() for other in others]

    def failure(other: int, address: list[str]) -> dict[str, Any] | None:
        host, port = address
        try:
            socket.create_connection((host, int(port)), CONNECT_TIMEOUT).close()
        except OSError as error:
            return {"source": me.node, "target": other, "address": host, "error": str(error)}
        return None

    # concurrently, because a few unreachable nodes in a row would exceed the step's timeout
    with ThreadPoolExecutor(len(others) or 1) as pool:
        return [failed for failed in pool.map(failure, others, addresses) if failed]


def own_address() -> str:
    """Return the IPv4 address of the interface that GLOO_SOCKET_IFNAME names.

    If there is none, return the address of the interface toward node 0.
    """
    name = os.environ.get("GLOO_SOCKET_IFNAME", "").encode()[:15]
    # an error means that there is no such interface, or that it has no address
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name))
        return socket.inet_ntoa(answer[20:24])
    family, kind, _, _, node0 = socket.getaddrinfo(
        os.environ["MASTER_ADDR"], 9, type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, kind) as probe:
        probe.connect(node0)
        return str(probe.getsockname()[0])


def right(me: ThisRank) -> None:
    """Run each collective once on numbers with a known result. Report whether the result is right."""
    n, mine, device = me.world, float(me.rank), me.device
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
        return bool((out == total + n * me.rank).all())

    def broadcast() -> bool:
        x = ones * (mine + 7)
        dist.broadcast(x, n - 1)
        return bool((x == n + 6).all())

    def point_to_point() -> bool:
        if n == 1:
            return True
        x = torch.empty_like(ones)
        sent = dist.isend(ones * mine, (me.rank + 1) % n)
        dist.recv(x, (me.rank - 1) % n)
        if sent is not None:
            sent.wait()
        return bool((x == (me.rank - 1) % n).all())

    for act in (all_reduce, all_gather, reduce_scatter, broadcast, point_to_point):
        name = act.__name__.replace("_", "-")
        verdicts: list[Any] = [None] * n
        with me.step(name):
            try:
                verdict = "right" if act() else "WRONG"
            except (RuntimeError, ValueError, NotImplementedError) as error:
                if "support" not in str(error) and "mplement" not in str(error):
                    raise
                verdict = "not offered"
            dist.all_gather_object(verdicts, verdict)
        wrong = [r for r, word in enumerate(verdicts) if word == "WRONG"]
        me.report("right", collective=name, verdict="WRONG" if wrong else verdicts[0], ranks=wrong)


def sweep(me: ThisRank) -> None:
    """Measure all-reduce at growing sizes. Report the slowest rank's mean time per round."""
    sizes = [8 * 4**n for n in range(30) if 8 * 4**n <= me.options["max_bytes"]]
    for size in sizes[-1:] if me.options["largest_only"] else sizes:
        count = size // 4
        act = functools.partial(dist.all_reduce, torch.ones(count, device=me.device))
        with me.step(f"all-reduce of {size} bytes"):
            for _ in range(WARMUP):
                act()
            enough = MEASURE_SECONDS / max(timed(me, act, 1), 1e-6)
            rounds = torch.tensor([min(MAX_ROUNDS, max(3, int(enough)))], device=me.device)
            dist.broadcast(rounds, 0)
            slowest = torch.tensor([timed(me, act, int(rounds))], device=me.device)
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            seconds = float(slowest)
        alg = size / seconds / 1e9
        bus = alg * 2 * (me.world - 1) / me.world
        rates = {"seconds": seconds, "algbw": alg, "busbw": bus}
        me.report("size", bytes=size, count=count, type="float", **rates)


def timed(me: ThisRank, act: Callable[[], object], rounds: int) -> float:
    """Return the mean seconds per call of `act` on this rank."""
    me.sync()
    began = time.perf_counter()
    for _ in range(rounds):
        act()
    me.sync()
    return (time.perf_counter() - began) / rounds


def pairs(me: ThisRank) -> None:
    """Measure each pair of nodes in both directions, between their first ranks, one at a time."""
    x = torch.ones(PAIR_BYTES // 4, device=me.device)
    first = [me.ranks_of(node, me.store)[0] for node in range(me.nodes)]
    rates: dict[tuple[int, int], list[float]] = {}
    for _ in range(PAIR_ROUNDS):  # spreads the rounds of each pair over time
        for source, target in itertools.permutations(range(me.nodes), 2):
            with me.step(f"node {source} to node {target}"):
                seconds = one_way(me, x, first[source], first[target])
                dist.barrier()
            rates.setdefault((source, target), []).append(PAIR_BYTES / seconds / 1e9)
    for (source, target), rounds in rates.items():
        gbs = statistics.median(rounds)
        me.report("pair", source=source, target=target, gbs=gbs, rounds=rounds)


def one_way(me: ThisRank, x: torch.Tensor, source: int, target: int) -> float:
    """Return, on all ranks, the seconds to send x once: the receiver's median of three."""
    seconds = []
    for number in range(4):
        dist.barrier()
        began = time.perf_counter()
        if me.rank == source:
            dist.send(x, target)
        elif me.rank == target:
            dist.recv(x, source)
        me.sync()
        if number:  # the first round sets up the connection
            seconds.append(time.perf_counter() - began)
    median = statistics.median(seconds)
    shared = torch.tensor([median if me.rank == target else 0.0], device=me.device)
    dist.all_reduce(shared)
    return float(shared)


def transports(me: ThisRank, logs: Path) -> dict[str, int]:
    """Return the number of channels by transport, from all ranks' NCCL logs.

    logs: the folder with this rank's logs. Without CUDA, the only transport is Gloo's sockets.
    """
    if not me.cuda:
        return {"sockets (Gloo)": 1}
    channels = Counter(
        next((name for word, name in TRANSPORTS.items() if via.startswith(word)), via)
        for path in logs.iterdir()
        for via in re.findall(r" via (\S+)", path.read_text(errors="replace"))
    )
    every: list[Any] = [None] * me.world
    dist.all_gather_object(every, channels)
    return dict(sum(every, Counter()))


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ddpctl-nccl-") as logs:
        check(ThisRank(json.loads(sys.argv[1])), Path(logs))
    sys.stdout.flush()
    os._exit(0)  # a normal exit aborts if a thread is still using the store


def check(me: ThisRank, logs: Path) -> None:
    if me.cuda:
        torch.cuda.set_device(me.local_rank)
        os.environ["NCCL_DEBUG"] = "INFO"
        os.environ["NCCL_DEBUG_SUBSYS"] = "INIT,NET,GRAPH"
        os.environ["NCCL_DEBUG_FILE"] = f"{logs}/%h.%p"
    with me.step("connecting"):
        device = torch.cuda.get_device_name() if me.cuda else "CPU"
        device += f", torch {torch.__version__}"
        me.report("world", nodes=me.nodes, ranks=me.world, device=device)
        if not mesh(me):
            time.sleep(0.5)  # time to read the report before torchrun ends the ranks
            os._exit(4)
        limit = datetime.timedelta(seconds=10 * me.timeout)
        dist.init_process_group("nccl" if me.cuda else "gloo", timeout=limit)
        dist.barrier()
    if not me.options["largest_only"]:
        right(me)
    sweep(me)
    if me.options["pairwise"]:
        pairs(me)
    me.report("done", transports=transports(me, logs))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
