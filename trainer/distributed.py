"""Who this process is among the others, and how they agree.

torchrun's words: a node is a machine, a rank is a process; `local_rank` counts within a node. Unset
variables mean one process, and the same loop runs without a process group.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import (  # type: ignore[attr-defined]  # public, but not in __all__
    FileStore,
    PrefixStore,
    Store,
    rendezvous,
)

from trainer.errors import KINDS, TrainerError, UsageError

JOIN_TIMEOUT = 900  # seconds that the first rank waits for the last, while images load


@dataclass(frozen=True)
class Ranks:
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    nnodes: int
    device: torch.device
    host: str

    @property
    def first(self) -> bool:
        """True on the one rank that prints and writes."""
        return self.rank == 0

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Add up `tensor` over all ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def gather(self, value: Any) -> list[Any]:
        """What every rank gave, in rank order, on every rank. Small picklable values."""
        values = [value] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(values, value)
        return values

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """What `source` gave, on every rank."""
        if self.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=source)
        return box[0]

    def barrier(self) -> None:
        self.gather(None)

    @contextlib.contextmanager
    def agreeing(self) -> Iterator[None]:
        """An error of one rank inside becomes the same error of all ranks."""
        failure: TrainerError | None = None
        try:
            yield
        except TrainerError as error:
            failure = error
        raise_first(self.gather(_as_fact(failure, self.host)))


def identity(env: Mapping[str, str], device: torch.device) -> Ranks:
    """This process by the environment that torchrun sets."""
    try:
        rank, world_size = int(env.get("RANK", "0")), int(env.get("WORLD_SIZE", "1"))
        local_world_size = int(env.get("LOCAL_WORLD_SIZE", "1"))
        local_rank = int(env.get("LOCAL_RANK", str(rank % local_world_size)))
        node_rank = int(env.get("GROUP_RANK", str(rank // local_world_size)))
    except ValueError as error:
        raise UsageError(f"RANK, WORLD_SIZE or LOCAL_RANK in the environment: {error}") from error
    if not 0 <= rank < world_size:
        raise UsageError(f"RANK={rank} with WORLD_SIZE={world_size}: a rank is below the size")
    return Ranks(
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_world_size=local_world_size,
        node_rank=node_rank,
        nnodes=-(-world_size // local_world_size),
        device=device,
        host=platform.node(),
    )


def pick_device(wanted: str, env: Mapping[str, str]) -> torch.device:
    """The device of this process; raises UsageError when there is none of the wanted kind."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "cpu" or (wanted == "auto" and count == 0):
        return torch.device("cpu")
    if count == 0:
        raise UsageError(
            "--device cuda: PyTorch sees no GPU here: check the driver and "
            "CUDA_VISIBLE_DEVICES, or use --device cpu"
        )
    local_rank = int(env.get("LOCAL_RANK", "0"))
    if local_rank >= count:
        raise UsageError(
            f"local rank {local_rank} has no GPU of its own ({count} here): "
            "lower --nproc-per-node, or use --device cpu"
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def join(ranks: Ranks, env: Mapping[str, str], timeout: float, failure: Exception | None) -> None:
    """Meet all other ranks and make the process group.

    `failure` is what went wrong on this rank before (its images, its device): all ranks learn of
    it here, so all end alike. Raises that error, or TrainerError naming the ranks that are missing.
    """
    if ranks.world_size == 1:
        if failure:
            raise failure
        return
    store = _store(ranks, env)
    facts = _exchange(ranks, store, _as_fact(failure, ranks.host) | {"device": ranks.device.type})
    raise_first(facts)
    kinds = {fact["device"] for fact in facts}
    if len(kinds) > 1:
        raise UsageError(
            "some ranks have a GPU and some have none: use --device cpu, or hosts that are alike"
        )
    dist.init_process_group(
        backend="cpu:gloo,cuda:nccl" if ranks.device.type == "cuda" else "gloo",
        store=PrefixStore("group", store),
        rank=ranks.rank,
        world_size=ranks.world_size,
        timeout=datetime.timedelta(seconds=timeout),
    )


kept: list[object] = []
"""What must not be taken apart before the process ends: taking a Gloo group apart waits for its own
thread, which may wait for the interpreter lock that is held meanwhile (torch 2.13)."""


def leave(ranks: Ranks) -> None:
    """Part in good order. Without the barrier a Gloo peer that still reads aborts (SIGABRT)."""
    if dist.is_initialized():
        ranks.barrier()
        kept.append(dist.group.WORLD)
        dist.destroy_process_group()


def raise_first(facts: list[dict[str, Any]]) -> None:
    """Raise the error of the lowest rank that has one, in the words that all ranks use."""
    failed = [(rank, fact) for rank, fact in enumerate(facts) if fact["error"]]
    if not failed:
        return
    rank, fact = failed[0]
    alone = len(failed) < len(facts)
    where = f"rank {rank} on {fact['host']}: " if alone else ""
    raise KINDS[fact["error"]](where + fact["message"])


def _as_fact(failure: Exception | None, host: str) -> dict[str, Any]:
    if failure is not None and not isinstance(failure, TrainerError):
        failure = TrainerError(f"{type(failure).__name__}: {failure}")
    name = type(failure).__name__ if failure else ""
    return {"error": name, "message": str(failure or ""), "host": host}


def _store(ranks: Ranks, env: Mapping[str, str]) -> Store:
    """The key-value store that torchrun's agent, --spawn or rank 0 keeps."""
    limit = datetime.timedelta(seconds=JOIN_TIMEOUT)
    if "TRAINER_STORE" in env:
        return FileStore(env["TRAINER_STORE"], ranks.world_size)
    if "MASTER_ADDR" not in env or "MASTER_PORT" not in env:
        raise UsageError(
            f"WORLD_SIZE={ranks.world_size} without MASTER_ADDR and MASTER_PORT: use torchrun"
        )
    meeting = rendezvous("env://", ranks.rank, ranks.world_size, timeout=limit)
    store, _, _ = next(meeting)
    # torchrun's agent keeps one store through its restarts; what a dead rank left must not be read.
    return PrefixStore(f"restart/{env.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _exchange(ranks: Ranks, store: Store, fact: dict[str, Any]) -> list[dict[str, Any]]:
    """Every rank's fact on every rank, before there is a process group."""
    names = [f"fact/{rank}" for rank in range(ranks.world_size)]
    store.set(names[ranks.rank], json.dumps(fact))
    deadline = time.monotonic() + JOIN_TIMEOUT
    missing = set(names)
    while missing and time.monotonic() < deadline:
        missing = {name for name in missing if not store.check([name])}
        time.sleep(0.05 if missing else 0)  # wait() raises differently in every kind of store
    if missing:
        absent = ", ".join(sorted(name.removeprefix("fact/") for name in missing))
        raise TrainerError(f"ranks {absent} did not come within {JOIN_TIMEOUT} s: see their logs")
    facts = [json.loads(store.get(name)) for name in names]
    store.add("read", 1)
    while ranks.first and store.add("read", 0) < ranks.world_size and time.monotonic() < deadline:
        time.sleep(0.01)  # rank 0 may be the store's keeper: it stays until all have read
    return facts


def backend(ranks: Ranks) -> str:
    if ranks.world_size == 1:
        return "none"
    return "nccl" if ranks.device.type == "cuda" else "gloo"


def describe(ranks: Ranks, seed: int) -> str:
    """One line about this rank, for the start of its log."""
    parts = [
        f"rank {ranks.rank}/{ranks.world_size}",
        f"node {ranks.node_rank}/{ranks.nnodes}",
        f"local rank {ranks.local_rank}",
        f"host {ranks.host}",
        f"pid {os.getpid()}",
        f"device {ranks.device}",
    ]
    if ranks.device.type == "cuda":
        nccl = ".".join(str(part) for part in torch.cuda.nccl.version())
        parts.append(f"{torch.cuda.get_device_name(ranks.device)}, backend nccl {nccl}")
    else:
        parts.append(f"backend {backend(ranks)}")
    parts += [f"torch {torch.__version__}", f"threads {torch.get_num_threads()}", f"seed {seed}"]
    return ", ".join(parts)
