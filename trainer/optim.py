"""The optimizer, and the learning rate and samples of each step as pure functions of the step.

The schedule has no state, so resuming needs only the number of the step.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from .config import Config
from .errors import UsageError
from .model import replaced, statistics

FEW_STEPS = 25  # per epoch; with fewer, the batch is usually too large to train well


@dataclass(frozen=True)
class Plan:
    """Sizes of a run. A global batch is cut into `parts` micro-batches; rank r computes parts r*k to
    (r+1)*k-1, where k is `parts_per_rank`."""

    samples: int
    global_batch: int
    world_size: int
    parts: int
    steps_per_epoch: int
    epochs: int
    total_steps: int
    peak_lr: float
    warmup_steps: int

    @property
    def parts_per_rank(self) -> int:
        return self.parts // self.world_size

    def batch_of(self, step: int) -> tuple[int, int]:
        """Where the batch of step `step` starts and ends in its epoch's order."""
        start = step % self.steps_per_epoch * self.global_batch
        return start, min(start + self.global_batch, self.samples)

    def parts_of_rank(self, rank: int, steps: Iterable[int]) -> Iterator[slice]:
        """The positions of a rank's micro-batches in the epoch's order, in the order of use. An
        empty one has one sample, which does not count."""
        for step in steps:
            start, end = self.batch_of(step)
            for part in range(rank * self.parts_per_rank, (rank + 1) * self.parts_per_rank):
                first, last = part_bounds(end - start, self.parts, part)
                yield slice(start + first, start + max(last, first + 1))

    def samples_by(self, step: int) -> int:
        """The number of images that `step` steps train on."""
        epochs, rest = divmod(step, self.steps_per_epoch)
        each = min(self.samples, self.steps_per_epoch * self.global_batch)
        return epochs * each + rest * self.global_batch


def make_plan(config: Config, samples: int, world_size: int) -> Plan:
    """Raises UsageError for a batch that does not divide; sizes are never rounded."""
    batch = config.global_batch or (config.batch_size or 128) * world_size
    parts = config.canonical_shards or world_size * config.grad_accum_steps
    if parts % world_size:
        raise UsageError(f"--canonical-shards {parts} does not divide by {world_size} ranks")
    if batch % parts:
        raise UsageError(
            f"a global batch of {batch} does not divide into {parts} equal parts "
            f"({world_size} ranks, --grad-accum-steps {config.grad_accum_steps}, "
            f"--canonical-shards {config.canonical_shards})"
        )
    steps = samples // batch if config.drop_last else -(-samples // batch)
    if steps == 0:
        raise UsageError(f"a global batch of {batch} with --drop-last: there are {samples} images")
    total = config.max_steps or steps * config.epochs
    ratio = batch / config.lr_base_size  # linear scaling is for SGD; sqrt suits adaptive optimizers
    return Plan(
        samples=samples,
        global_batch=batch,
        world_size=world_size,
        parts=parts,
        steps_per_epoch=steps,
        epochs=-(-total // steps),
        total_steps=total,
        peak_lr=config.lr
        * {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[config.lr_scaling],
        warmup_steps=min(round(config.warmup_epochs * steps), total // 2),
    )


def lr_at(step: int, config: Config, plan: Plan) -> float:
    """Learning rate of optimizer step `step`, counted from 0."""
    warmup = plan.warmup_steps
    if step < warmup:
        return plan.peak_lr * (step + 1) / warmup
    if config.schedule == "constant":
        return plan.peak_lr
    if config.schedule == "multistep":
        epoch = step // plan.steps_per_epoch
        passed = sum(epoch >= milestone for milestone in config.parsed_milestones)
        return plan.peak_lr * config.gamma**passed
    done = (step - warmup) / max(1, plan.total_steps - warmup)
    if config.schedule == "triangular":
        return plan.peak_lr * (1 - done)
    return config.min_lr + (plan.peak_lr - config.min_lr) * (1 + math.cos(math.pi * done)) / 2


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def part_bounds(size: int, parts: int, index: int) -> tuple[int, int]:
    """Where part `index` of `parts` starts and ends in a batch of `size`. Sizes differ by at most
    one, and W ranks with k parts each cut a batch as W*k ranks with one part do."""
    return size * index // parts, size * (index + 1) // parts


class Ema:
    """Exponential moving average of a network's weights and batch-norm statistics (--ema).

    The decay warms up, as otherwise the first steps' weights would count for hundreds of steps.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.live = [*model.parameters(), *statistics(model)]
        self.values = [tensor.detach().clone() for tensor in self.live]
        self.statistics = self.values[len(list(model.parameters())) :]

    def update(self, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        with torch.no_grad():
            torch._foreach_lerp_(self.values, self.live, 1 - decay)

    def in_place(self) -> contextlib.AbstractContextManager[None]:
        """Inside, the network has the averaged values."""
        return replaced(self.live, self.values)


def make_optimizer(model: nn.Module, config: Config) -> torch.optim.Optimizer:
    weights = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]  # batch norm and biases
    decay, other_decay = config.weight_decay, config.norm_weight_decay
    groups = [
        {"params": weights, "weight_decay": decay},
        {"params": others, "weight_decay": decay if other_decay is None else other_decay},
    ]
    if keeps_gradients(config):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
    if config.opt != "sgd":
        adaptive = torch.optim.Adam if config.opt == "adam" else torch.optim.AdamW
        return adaptive(groups, lr=config.lr, fused=True)
    # A CUDA graph would bake in a plain number.
    lr = torch.tensor(config.lr, device=weights[0].device) if config.cuda_graph else config.lr
    nesterov = config.nesterov and config.momentum > 0
    sgd = torch.optim.SGD(groups, lr, config.momentum, nesterov=nesterov, fused=True)
    if config.momentum:  # torch leaves it uninitialised if fp16 overflows in the first step
        for parameter in model.parameters():
            sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return sgd


def keeps_gradients(config: Config) -> bool:
    """Whether gradients keep their memory from step to step. torch.compile's own CUDA graphs would
    overwrite what they allocate for the first of several micro-batches."""
    return config.compile and config.compile_mode != "default"
