"""`Training`: everything that changes while a run trains, and how it is saved and loaded."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import nn

from . import checkpoint
from .checkpoint import Writer, Written
from .config import Config
from .data import Images
from .distributed import Ranks, averaged_statistics, check_replicas
from .errors import KILLED, CheckpointError
from .logs import Metrics, Progress, say
from .loss import Loss
from .model import copy, flatten, statistics, unflatten
from .optim import Ema, Plan
from .restore import Disks

PLACES = ("out", "checkpoint_dir", "data", "resume")  # does not affect training
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
ECHO = 2.0  # seconds


class Stopped(Exception):
    """All ranks agreed to save and end, because one of them received a signal."""


class StopRequest:
    """Truthy once a signal has arrived; `name` is that signal's.

    SIGTERM, SIGINT and SIGUSR1 on any rank ask for save-then-stop. The handler only notes the
    signal; the ranks agree at the next step boundary. A second signal ends this process at once,
    unsaved, unless it follows within two seconds: a terminal or `docker stop` signals a whole
    process group, and torchrun then passes the signal on to its ranks once more.
    """

    def __init__(self) -> None:
        self.name = ""
        self.since = 0.0

    def __bool__(self) -> bool:
        return bool(self.name)

    def listen(self) -> None:
        for number in SIGNALS:
            signal.signal(number, self._note)

    def ignore(self) -> None:
        """The run is over: ignore further signals."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self.name:
            self.name = signal.Signals(number).name
            self.since = time.monotonic()
        elif time.monotonic() - self.since > ECHO:
            os._exit(KILLED)  # no cleanup: this process may be inside a collective


@dataclass
class Training:
    config: Config
    plan: Plan
    ranks: Ranks
    data: Images
    model: nn.Module  # the plain network: evaluated and saved; its state_dict has no "module."
    compiled: nn.Module  # the same network, through torch.compile if so configured
    net: nn.Module  # what training calls: `compiled` inside DDP
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler | None  # fp16 only
    ema: Ema | None
    totals: torch.Tensor  # since the last poll, on this rank: loss sum, images; then two flags
    stop: StopRequest
    progress: Progress
    disks: Disks
    losses: tuple[Loss, Loss]  # losses for training and for evaluation
    graphed: Callable[[Training, torch.Tensor], None] | None = None  # with --cuda-graph
    profiler: torch.profiler.profile | None = None
    writer: Writer = field(default_factory=Writer)
    copy_problems: list[str] = field(default_factory=list)
    metrics: Metrics = field(default_factory=lambda: Metrics(None))
    step: int = 0  # optimizer steps done
    eval_pending: bool = False  # the epoch that just ended is not evaluated yet
    best: dict[str, Any] = field(default_factory=dict)  # step, epoch, top1 of the best evaluation
    last: dict[str, Any] = field(default_factory=dict)  # the newest evaluation
    began: float = field(default_factory=time.monotonic)
    saved: str | None = None  # on rank 0: the newest checkpoint on disk, e.g. ckpt/step-00001234
    saved_step: int = -1  # of the newest snapshot
    saved_at: float = field(default_factory=time.monotonic)
    save_due: bool = False  # the ranks' decision at the last poll
    polls: deque[tuple[int, Callable[[], list[float]]]] = field(default_factory=deque)  # unread
    poll_lag: int = 0  # polls that may remain unread
    moved_at: float = field(default_factory=time.monotonic)  # of the last poll; infinite at the end
    status: threading.Lock = field(default_factory=threading.Lock)  # held while status.json changes

    @property
    def epoch(self) -> int:
        """Epochs started, counted from 1."""
        return max(1, -(-self.step // self.plan.steps_per_epoch))

    @property
    def own_statistics(self) -> bool:
        """Whether batch-norm statistics differ between ranks."""
        c = self.config
        several = self.ranks.world_size > 1 and not c.canonical_shards
        return several and c.bn == "local" and bool(statistics(self.model))

    @property
    def parameters(self) -> list[nn.Parameter]:
        return list(self.model.parameters())

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        if self.config.amp == "off":
            return contextlib.nullcontext()
        kind = torch.bfloat16 if self.config.amp == "bf16" else torch.float16
        return torch.autocast(self.ranks.device.type, dtype=kind)


def save(t: Training) -> None:
    """Take a snapshot, once all ranks are known to hold the same weights, and write it while
    training continues. A collective."""
    began = time.perf_counter()
    finish_writing(t)
    check_replicas(t.ranks, t.parameters, t.step)
    state, meta = to_checkpoint(t)
    t.saved_step, t.saved_at = t.step, time.monotonic()
    paused = time.perf_counter() - began
    write = partial(checkpoint.save, t.disks.root, state, meta, t.config.keep)
    if t.ranks.first:
        t.writer.submit(write, partial(record_saved, t, t.step, t.epoch, paused))
    elif t.ranks.rank == t.disks.copy_on:
        t.writer.submit(partial(second_copy, write), t.copy_problems.append)
    t.progress.pause(paused)


def record_saved(t: Training, step: int, epoch: int, paused: float, written: Written) -> None:
    saved, seconds = written
    t.saved = f"ckpt/{saved.path.name}"
    t.metrics.write(
        "checkpoint",
        step=step,
        epoch=epoch,
        path=t.saved,
        bytes=(saved.path / "state.pt").stat().st_size,
        sha256=saved.identity,
        seconds=round(seconds, 4),  # in the background
        paused=round(paused, 4),  # of training
    )


def second_copy(write: Callable[[], Written]) -> str:
    """Write the second copy. Returns what went wrong, if anything: the run has the first copy, so a
    full second disk is only a warning."""
    try:
        write()
    except CheckpointError as error:
        return str(error)
    return ""


def finish_writing(t: Training) -> None:
    """Wait until everything submitted is on disk. A collective. Raises CheckpointError."""
    with t.ranks.agreeing():
        t.writer.collect(wait=True)
    if t.disks.copy_on is not None:
        problems = t.ranks.broadcast([p for p in t.copy_problems if p], t.disks.copy_on)
        t.copy_problems.clear()
        if t.ranks.first:
            for problem in problems:
                say(f"WARNING: no second copy of a checkpoint: {problem}")


def to_checkpoint(t: Training) -> tuple[dict[str, Any], dict[str, Any]]:
    """(state, meta) for rank 0 to write. A collective: all ranks call it."""
    own = None
    if t.own_statistics:
        own = torch.stack(t.ranks.gather(flatten(statistics_to_keep(t)).cpu()))
    with averaged_statistics(t.model, t.ranks, when=t.own_statistics):
        model = checkpoint.snapshot(t.model.state_dict())
    state = {
        "model": model,
        "optimizer": checkpoint.snapshot(t.optimizer.state_dict()),
        "statistics_of_every_rank": own,
        "ema": checkpoint.snapshot(t.ema.values) if t.ema else None,
        "scaler": t.scaler.state_dict() if t.scaler else None,
    }
    checkpoint.synchronise(t.ranks.device)
    meta = {
        "v": 1,
        "step": t.step,
        "epoch": t.epoch,
        "eval_pending": t.eval_pending,
        "best": t.best,
        "identity": identity(t),
        "world_size": t.ranks.world_size,
        "parts": t.plan.parts,
        "steps_per_epoch": t.plan.steps_per_epoch,
        "total_steps": t.plan.total_steps,
        "config": {k: v for k, v in asdict(t.config).items() if k not in PLACES},
        "versions": versions(),
    }
    return state, meta


def from_checkpoint(t: Training, state: dict[str, Any], meta: dict[str, Any]) -> None:
    """Continue from a checkpoint that fits (see restore.check_fits)."""
    t.model.load_state_dict(state["model"])
    if t.ema:
        copy(state["ema"] or t.ema.live, t.ema.values)
    own = state["statistics_of_every_rank"]
    if own is not None:
        same_ranks = t.own_statistics and len(own) == t.ranks.world_size
        mine = own[t.ranks.rank] if same_ranks else own.double().mean(0)
        tensors = statistics_to_keep(t) if state["ema"] else statistics(t.model)
        size = sum(tensor.numel() for tensor in tensors)
        copy(unflatten(mine[:size], tensors), tensors)
    # Momentum comes from the checkpoint; learning rate, decay and the like from this run's flags.
    groups = t.optimizer.state_dict()["param_groups"]
    t.optimizer.load_state_dict({**state["optimizer"], "param_groups": groups})
    if t.scaler and state["scaler"]:
        t.scaler.load_state_dict(state["scaler"])
    t.step = meta["step"]
    t.eval_pending = meta["eval_pending"]
    t.best = meta["best"]


def statistics_to_keep(t: Training) -> list[torch.Tensor]:
    """Tensors that differ between ranks under `--bn local`."""
    return [*statistics(t.model), *(t.ema.statistics if t.ema else ())]


def identity(t: Training) -> dict[str, Any]:
    """What must be the same for a run to resume from a checkpoint. See also restore.NOTED."""
    c = t.config
    classes = c.num_classes or t.data.num_classes
    network = f"{c.model} width {c.width or 'default'} stem {c.stem}, {classes} classes"
    return {
        "network": network,
        "optimizer": c.opt,
        "data": t.data.fingerprint,
        "images": t.plan.samples,
        "global batch": t.plan.global_batch,
        "seed": c.seed,
        "augment": c.augment,
        "drop last": c.drop_last,
        "canonical shards": c.canonical_shards,
    }


def versions() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }
