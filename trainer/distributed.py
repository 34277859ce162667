"""The ranks of a run: which one this process is, how they connect, agree and exit.

In torchrun's terms, a node is a machine and a rank is a process; `local_rank` counts within a node.
Without torchrun's variables, there is one rank, and the same loop runs without a process group.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import itertools
import json
import os
import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import FileStore, PrefixStore, Store, rendezvous  # type: ignore[attr-defined]

from .errors import KINDS, ReplicaMismatch, TrainerError, UsageError

JOIN_TIMEOUT = 900  # seconds that the first rank waits for the last one to load its images
# Seconds that a collective may take. Ranks may be minutes apart when one compiles or reads from a cold
# disk; a rank that is lost is noticed much sooner, by its missing signs of life (ending.Watch).
GROUP_TIMEOUT = 1800


@dataclass(frozen=True)
class Ranks:
    rank: int
    world_size: int
    local_rank: int
    node_rank: int
    nnodes: int
    device: torch.device
    host: str
    timeout: float = 120.0  # seconds after which a silent rank counts as lost
    store: Store | None = None  # key-value store of this attempt, apart from the process group
    # numbers the uses of `agreeing`
    turns: Iterator[int] = field(default_factory=itertools.count, compare=False)

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which prints and writes for all ranks."""
        return self.rank == 0

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Add up `tensor` over all ranks, in place, and return it."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def gather(self, value: Any) -> list[Any]:
        """Return all ranks' values, in rank order, on every rank. They must be small and
        picklable."""
        values = [value] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(values, value)
        return values

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """Return the value of rank `source` on every rank."""
        if self.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=source)
        return box[0]

    @contextlib.contextmanager
    def agreeing(self) -> Iterator[None]:
        """Context manager: if any rank raises a TrainerError in the block, all ranks raise it. A
        collective.

        The ranks wait for one another through the store, as long as the missing ones are alive.
        """
        failure: TrainerError | None = None
        try:
            yield
        except TrainerError as error:
            failure = error
        if self.store:
            exchange(self, self.store, f"turn/{next(self.turns)}", failure, self.timeout)
        elif failure:
            raise failure


def identify(env: Mapping[str, str], device: torch.device) -> Ranks:
    """Return this process's Ranks, from the environment that torchrun sets. Raises UsageError."""
    try:
        rank, world_size = int(env.get("RANK", "0")), int(env.get("WORLD_SIZE", "1"))
        local_world_size = int(env.get("LOCAL_WORLD_SIZE", "1"))
        ranks = Ranks(
            rank=rank,
            world_size=world_size,
            local_rank=int(env.get("LOCAL_RANK", rank % local_world_size)),
            node_rank=int(env.get("GROUP_RANK", rank // local_world_size)),
            nnodes=int(env.get("GROUP_WORLD_SIZE", -(-world_size // local_world_size))),
            device=device,
            host=platform.node(),
        )
    except ValueError as error:
        raise UsageError(
            f"RANK, WORLD_SIZE or a similar variable in the environment: {error}; start the ranks "
            "with torchrun, or unset the variable"
        ) from error
    if not 0 <= rank < world_size:
        raise UsageError(
            f"RANK={rank} with WORLD_SIZE={world_size}: RANK must be at least 0 and less than "
            "WORLD_SIZE"
        )
    return ranks


def pick_device(wanted: str, env: Mapping[str, str]) -> torch.device:
    """Return the device of this process. Raises UsageError if it needs a GPU and has none."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "cpu" or (wanted == "auto" and count == 0):
        return torch.device("cpu")
    if count == 0:
        raise UsageError(
            "--device cuda: PyTorch sees no GPU; check the driver and "
            "CUDA_VISIBLE_DEVICES, or use --device cpu"
        )
    local_rank = int(env.get("LOCAL_RANK", "0"))
    if local_rank >= count:
        raise UsageError(
            f"local rank {local_rank} has no GPU of its own, because PyTorch sees only {count}; "
            "lower --nproc-per-node, or use --device cpu"
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def join(ranks: Ranks, env: Mapping[str, str], timeout: float, failure: Exception | None) -> Ranks:
    """Wait for all other ranks and create the process group. Return `ranks` with their store.

    failure: an error that this rank had before the join, for example while loading its images. It is
    raised on all ranks. If ranks do not join, raises a TrainerError that names them.
    """
    if ranks.world_size == 1:
        if failure:
            raise failure
        return ranks
    store = _store(ranks, env)
    facts = exchange(ranks, store, "join", failure, JOIN_TIMEOUT)
    if len({fact["device"] for fact in facts}) > 1:
        raise UsageError(
            "some ranks have a GPU and others have none; use --device cpu, or only hosts with GPUs"
        )
    make_group(ranks, PrefixStore("group", store))
    kept.append(dist.group.WORLD)
    return dataclasses.replace(ranks, store=PrefixStore("run", store), timeout=timeout)


def make_group(ranks: Ranks, store: Store) -> None:
    on_gpu = ranks.device.type == "cuda"
    dist.init_process_group(
        backend="cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        store=store,
        rank=ranks.rank,
        world_size=ranks.world_size,
        timeout=datetime.timedelta(seconds=GROUP_TIMEOUT),
        device_id=ranks.device if on_gpu else None,  # NCCL connects now, and to this GPU
    )


kept: list[object] = []
"""Objects that must live until the process ends: destroying a Gloo group waits for its own thread,
which may in turn wait for the interpreter lock that the destroying thread holds (torch 2.13)."""


def leave(ranks: Ranks) -> None:
    """Close the group on all ranks together; otherwise, a Gloo peer that is still reading
    aborts."""
    if dist.is_initialized():
        ranks.gather(None)
        dist.destroy_process_group()


def as_fact(ranks: Ranks, failure: Exception | None) -> dict[str, str]:
    """Return this rank's report to the others on itself and its failure. `error` is "" if it has not
    failed."""
    if failure is not None and not isinstance(failure, TrainerError):
        failure = TrainerError(f"{type(failure).__name__}: {failure}")
    return {
        "error": type(failure).__name__ if failure else "",
        "message": str(failure or ""),
        "host": ranks.host,
        "device": ranks.device.type,
    }


def _store(ranks: Ranks, env: Mapping[str, str]) -> Store:
    """Return the key-value store held by torchrun's agent, by --spawn (a file) or by rank 0."""
    if "TRAINER_STORE" in env:
        return FileStore(env["TRAINER_STORE"], ranks.world_size)
    if "MASTER_ADDR" not in env or "MASTER_PORT" not in env:
        raise UsageError(
            f"WORLD_SIZE={ranks.world_size} needs MASTER_ADDR and MASTER_PORT; use torchrun"
        )
    limit = datetime.timedelta(seconds=JOIN_TIMEOUT)
    store, _, _ = next(rendezvous("env://", ranks.rank, ranks.world_size, timeout=limit))
    # torchrun's agent keeps one store across restarts; never read an earlier attempt's values.
    return PrefixStore(f"restart/{env.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def exchange(
    ranks: Ranks, store: Store, name: str, failure: Exception | None, timeout: float
) -> list[dict[str, str]]:
    """Share this rank's fact (see `as_fact`) with all ranks through the store. Return all ranks' facts.

    Raises the error of the lowest rank that has one, with the same message on all ranks. Raises
    TrainerError once the missing ranks have shown no sign of life for `timeout` seconds.
    """
    store.set(f"{name}/{ranks.rank}", json.dumps(as_fact(ranks, failure)))
    missing, signs, since = set(range(ranks.world_size)), -1, time.monotonic()
    while missing := {rank for rank in missing if not store.check([f"{name}/{rank}"])}:
        seen = sum(store.add(f"alive/{rank}", 0) for rank in missing)  # see ending.Watch
        if seen != signs:
            signs, since = seen, time.monotonic()
        if time.monotonic() - since > timeout:
            absent = ", ".join(map(str, sorted(missing)))
            named, whose = (
                ("rank", "its host's") if len(missing) == 1 else ("ranks", "their hosts'")
            )
            raise TrainerError(
                f"no sign of life from {named} {absent} for {timeout:g} s; see {whose} logs"
            )
        time.sleep(0.05)
    facts = [json.loads(store.get(f"{name}/{rank}")) for rank in range(ranks.world_size)]
    store.add(f"{name}/read", 1)
    deadline = time.monotonic() + timeout
    while ranks.first and time.monotonic() < deadline:  # rank 0 may hold the store
        if store.add(f"{name}/read", 0) == ranks.world_size:
            break
        time.sleep(0.01)
    failed = [(rank, fact) for rank, fact in enumerate(facts) if fact["error"]]
    for rank, fact in failed:
        where = f"rank {rank} on {fact['host']}: " if len(failed) < len(facts) else ""
        error = KINDS[fact["error"]](where + fact["message"])
        error.located = True
        raise error
    return facts


def backend(ranks: Ranks) -> str:
    several = "nccl" if ranks.device.type == "cuda" else "gloo"
    return several if ranks.world_size > 1 else "none"


def describe(ranks: Ranks, seed: int) -> str:
    """Return one line that describes this rank, for the start of its log."""
    transport = f"backend {backend(ranks)}"
    if ranks.device.type == "cuda":
        nccl = ".".join(str(part) for part in torch.cuda.nccl.version())
        transport = f"{torch.cuda.get_device_name(ranks.device)}, backend nccl {nccl}"
    return (
        f"rank {ranks.rank}/{ranks.world_size}, node {ranks.node_rank}/{ranks.nnodes}, "
        f"local rank {ranks.local_rank}, host {ranks.host}, pid {os.getpid()}, "
        f"device {ranks.device}, {transport}, torch {torch.__version__}, "
        f"threads {torch.get_num_threads()}, seed {seed}"
    )


def check_replicas(ranks: Ranks, parameters: list[nn.Parameter], step: int) -> None:
    """Compare the weights of all ranks. A collective.

    Raises ReplicaMismatch on all ranks, with the ranks that differ from the majority.
    """
    if ranks.world_size == 1:
        return
    hashes = ranks.gather(int(fingerprint(parameters)))
    common = max(set(hashes), key=hashes.count)
    different = [str(rank) for rank, value in enumerate(hashes) if value != common]
    if different:
        named = "rank" if len(different) == 1 else "ranks"
        raise ReplicaMismatch(
            f"step {step}: the weights of {named} {', '.join(different)} differ from those of the "
            "others (faulty memory, or code that runs only on some ranks); resume from the last "
            "checkpoint"
        )


def fingerprint(parameters: list[nn.Parameter]) -> torch.Tensor:
    """Return a 64-bit hash of the parameters, on their device. Any single flipped bit changes it."""
    total = torch.zeros((), dtype=torch.int64, device=parameters[0].device)
    for parameter in parameters:
        bits = parameter.detach().float().contiguous().view(torch.int32).reshape(-1).long()
        # Each place has its own odd factor, so one changed value cannot cancel out modulo 2**64.
        places = torch.arange(bits.numel(), device=bits.device) * 2654435761 * 2 + 1
        total = total * 31 + (bits * places).sum()
    return total
