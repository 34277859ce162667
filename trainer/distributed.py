"""The ranks of a run: which one this process is, how they meet, agree and part.

In torchrun's words a node is a machine and a rank is a process; `local_rank` counts within a node.
Without torchrun's variables there is one rank, and the same loop runs without a process group.

Further down: comparing replicas, and batch-norm statistics across ranks.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import (  # type: ignore[attr-defined]  # public, but not in __all__
    FileStore,
    PrefixStore,
    Store,
    rendezvous,
)
from torch.nn.modules.batchnorm import _BatchNorm

from .errors import KINDS, ReplicaMismatch, TrainerError, UsageError

JOIN_TIMEOUT = 900  # seconds that the first rank waits for the last one to load its images


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
    timeout: float = 120.0  # seconds after which a silent rank counts as lost
    store: Store | None = None  # key-value store of this attempt, apart from the process group
    exchanges: Iterator[int] = field(default_factory=itertools.count, compare=False)

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
        """Every rank's value, in rank order, on every rank. Values must be small and picklable."""
        values = [value] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(values, value)
        return values

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """The value of rank `source`, on every rank."""
        if self.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=source)
        return box[0]

    def barrier(self) -> None:
        self.gather(None)

    @contextlib.contextmanager
    def agreeing(self, *, patient: bool = False) -> Iterator[None]:
        """If any rank raises a TrainerError inside, all ranks raise it. A collective.

        patient: the work may take longer than the process group's timeout. The ranks then wait
        through the store, for as long as those that they wait for are alive.
        """
        failure: TrainerError | None = None
        try:
            yield
        except TrainerError as error:
            failure = error
        fact = as_fact(failure, self.host)
        if patient and self.store is not None:
            name = f"exchange/{next(self.exchanges)}"
            raise_first(_exchange(self, self.store, name, fact, self.timeout))
        else:
            raise_first(self.gather(fact))


def identify(env: Mapping[str, str], device: torch.device) -> Ranks:
    """This process, according to the environment that torchrun sets."""
    try:
        rank, world_size = int(env.get("RANK", "0")), int(env.get("WORLD_SIZE", "1"))
        local_world_size = int(env.get("LOCAL_WORLD_SIZE", "1"))
        local_rank = int(env.get("LOCAL_RANK", str(rank % local_world_size)))
        node_rank = int(env.get("GROUP_RANK", str(rank // local_world_size)))
    except ValueError as error:
        raise UsageError(f"RANK, WORLD_SIZE or LOCAL_RANK in the environment: {error}") from error
    if not 0 <= rank < world_size:
        raise UsageError(
            f"RANK={rank} with WORLD_SIZE={world_size}: the rank must be below the world size"
        )
    return Ranks(
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_world_size=local_world_size,
        node_rank=node_rank,
        nnodes=int(env.get("GROUP_WORLD_SIZE", -(-world_size // local_world_size))),
        device=device,
        host=platform.node(),
    )


def pick_device(wanted: str, env: Mapping[str, str]) -> torch.device:
    """The device of this process. Raises UsageError if there is none of the wanted kind."""
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


def join(ranks: Ranks, env: Mapping[str, str], timeout: float, failure: Exception | None) -> Ranks:
    """Meet all other ranks and create the process group. Returns `ranks` with their store.

    `failure` is what went wrong on this rank so far (its images, its device). All ranks learn of it
    here and raise it. Also raises TrainerError naming the ranks that did not come.
    """
    if ranks.world_size == 1:
        if failure:
            raise failure
        return ranks
    store = _store(ranks, env)
    fact = as_fact(failure, ranks.host) | {"device": ranks.device.type}
    facts = _exchange(ranks, store, "join", fact, JOIN_TIMEOUT)
    raise_first(facts)
    kinds = {fact["device"] for fact in facts}
    if len(kinds) > 1:
        raise UsageError(
            "some ranks have a GPU and others have none: use --device cpu, or hosts of one kind"
        )
    make_group(ranks, PrefixStore("group", store), timeout)
    kept.append(dist.group.WORLD)
    return dataclasses.replace(ranks, store=PrefixStore("run", store), timeout=timeout)


def make_group(ranks: Ranks, store: Store, timeout: float) -> None:
    on_gpu = ranks.device.type == "cuda"
    dist.init_process_group(
        backend="cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        store=store,
        rank=ranks.rank,
        world_size=ranks.world_size,
        timeout=datetime.timedelta(seconds=timeout),
        device_id=ranks.device if on_gpu else None,  # NCCL connects now, and to this GPU
    )


kept: list[object] = []
"""Objects that must live until the process ends: destroying a Gloo group waits for its own thread,
which may in turn wait for the interpreter lock that the destroying thread holds (torch 2.13)."""


def leave(ranks: Ranks) -> None:
    """Leave the process group. Without the barrier, a Gloo peer that is still reading aborts."""
    if dist.is_initialized():
        ranks.barrier()
        dist.destroy_process_group()


def raise_first(facts: list[dict[str, Any]]) -> None:
    """Raise the error of the lowest rank that has one, with the same message on all ranks."""
    failed = [(rank, fact) for rank, fact in enumerate(facts) if fact["error"]]
    if not failed:
        return
    rank, fact = failed[0]
    alone = len(failed) < len(facts)
    where = f"rank {rank} on {fact['host']}: " if alone else ""
    error = KINDS[fact["error"]](where + fact["message"])
    error.located = True
    raise error


def as_fact(failure: Exception | None, host: str) -> dict[str, Any]:
    """A failure as one rank tells the others of it; `error` is "" for none."""
    if failure is not None and not isinstance(failure, TrainerError):
        failure = TrainerError(f"{type(failure).__name__}: {failure}")
    name = type(failure).__name__ if failure else ""
    return {"error": name, "message": str(failure or ""), "host": host}


def _store(ranks: Ranks, env: Mapping[str, str]) -> Store:
    """The key-value store held by torchrun's agent, by --spawn (a file) or by rank 0."""
    limit = datetime.timedelta(seconds=JOIN_TIMEOUT)
    if "TRAINER_STORE" in env:
        return FileStore(env["TRAINER_STORE"], ranks.world_size)
    if "MASTER_ADDR" not in env or "MASTER_PORT" not in env:
        raise UsageError(
            f"WORLD_SIZE={ranks.world_size} without MASTER_ADDR and MASTER_PORT: use torchrun"
        )
    meeting = rendezvous("env://", ranks.rank, ranks.world_size, timeout=limit)
    store, _, _ = next(meeting)
    # torchrun's agent keeps one store across restarts; never read what an earlier attempt left.
    return PrefixStore(f"restart/{env.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _exchange(
    ranks: Ranks, store: Store, name: str, fact: dict[str, Any], timeout: float
) -> list[dict[str, Any]]:
    """Every rank's fact on every rank, through the store.

    Raises TrainerError once the missing ranks have shown no sign of life for `timeout` seconds.
    """
    store.set(f"{name}/{ranks.rank}", json.dumps(fact))
    missing, signs, since = set(range(ranks.world_size)), -1, time.monotonic()
    while missing := {rank for rank in missing if not store.check([f"{name}/{rank}"])}:
        seen = sum(store.add(f"alive/{rank}", 0) for rank in missing)  # see ending.Watch
        if seen != signs:
            signs, since = seen, time.monotonic()
        if time.monotonic() - since > timeout:
            absent = ", ".join(map(str, sorted(missing)))
            raise TrainerError(f"no sign of rank {absent} for {timeout:g} s: see the logs there")
        time.sleep(0.05)
    facts = [json.loads(store.get(f"{name}/{rank}")) for rank in range(ranks.world_size)]
    store.add(f"{name}/read", 1)
    deadline = time.monotonic() + timeout
    while ranks.first and store.add(f"{name}/read", 0) < ranks.world_size:
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)  # rank 0 may hold the store: it stays until all have read
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


def check_replicas(ranks: Ranks, parameters: list[nn.Parameter], step: int) -> None:
    """Raises ReplicaMismatch on all ranks, naming those that differ from the majority."""
    if ranks.world_size == 1:
        return
    table = torch.zeros(ranks.world_size, dtype=torch.int64, device=ranks.device)
    table[ranks.rank] = fingerprint(parameters)
    hashes = ranks.sum_(table).tolist()
    common = max(set(hashes), key=hashes.count)
    different = [str(rank) for rank, value in enumerate(hashes) if value != common]
    if different:
        raise ReplicaMismatch(
            f"step {step}: the weights of rank {', '.join(different)} differ from the others': "
            "faulty memory, or code that runs on some ranks only; resume from the last checkpoint"
        )


def fingerprint(parameters: list[nn.Parameter]) -> torch.Tensor:
    """64-bit hash of the parameters, on their device; any single flipped bit changes it."""
    total = torch.zeros((), dtype=torch.int64, device=parameters[0].device)
    for parameter in parameters:
        bits = parameter.detach().float().contiguous().view(torch.int32).reshape(-1).long()
        # Each place has its own odd factor: one changed value cannot cancel out modulo 2**64.
        places = torch.arange(bits.numel(), device=bits.device) * 2654435761 * 2 + 1
        total = total * 31 + (bits * places).sum()
    return total


def norms(model: nn.Module) -> list[_BatchNorm]:
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def set_training(model: nn.Module, *, frozen: bool) -> None:
    """Training mode; frozen batch norms use their running statistics and do not update them."""
    model.train()
    if frozen:
        for module in norms(model):
            module.eval()


@contextlib.contextmanager
def fixed_statistics(model: nn.Module, when: bool) -> Iterator[None]:
    """Use the running statistics for a micro-batch that is too small to have its own."""
    modules = [module for module in norms(model) if module.training] if when else []
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for module in modules:
            module.train()


def statistics(model: nn.Module) -> list[torch.Tensor]:
    """Running means and variances in module order, without the batch counters."""
    return [
        buffer
        for module in norms(model)
        for buffer in (module.running_mean, module.running_var)
        if buffer is not None
    ]


def count_batches(model: nn.Module, count: int) -> None:
    for module in norms(model):
        if module.num_batches_tracked is not None:
            module.num_batches_tracked.fill_(count)


def flatten(tensors: list[torch.Tensor]) -> torch.Tensor:
    """All values in one new vector."""
    if not tensors:
        return torch.empty(0)
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def unflatten(flat: torch.Tensor, tensors: list[torch.Tensor]) -> None:
    """Copy a flat tensor back into `tensors`."""
    parts = flat.split([tensor.numel() for tensor in tensors])
    copy([part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)], tensors)


def copy(values: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    with torch.no_grad():
        for target, value in zip(targets, values, strict=True):
            target.copy_(value)


@contextlib.contextmanager
def kept_aside(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Afterwards, `tensors` are as they were."""
    own = [tensor.detach().clone() for tensor in tensors]
    try:
        yield
    finally:
        copy(own, tensors)


@contextlib.contextmanager
def averaged_statistics(model: nn.Module, ranks: Ranks, when: bool) -> Iterator[None]:
    """Inside, the running statistics are their mean over all ranks. A collective.

    With `--bn local` each rank normalises by its own micro-batch and keeps its own statistics. The
    mean is what is evaluated and exported; each rank then continues with its own statistics, so
    that evaluating and saving never change the training that follows.
    """
    tensors = statistics(model) if when else []
    with kept_aside(tensors):
        if tensors:
            # In float64, so that the mean of equal values is that value at any world size.
            mean = ranks.sum_(flatten(tensors).double()) / ranks.world_size
            unflatten(mean, tensors)
        yield


def of_every_rank(tensors: list[torch.Tensor], ranks: Ranks) -> torch.Tensor:
    """Each rank's own values, shape (world size, n), on the CPU. A collective."""
    own = flatten(tensors)
    table = torch.zeros(ranks.world_size, own.numel(), dtype=own.dtype, device=own.device)
    table[ranks.rank] = own
    return ranks.sum_(table).cpu()
