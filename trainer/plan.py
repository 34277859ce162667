"""Pure functions from a step of a run to its images and its learning rate.

Nothing here has state, so resuming needs only the step number.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .config import Config, is_function_name, named_function
from .errors import UsageError


@dataclass(frozen=True)
class Plan:
    """Sizes of a run. A global batch is cut into `parts` micro-batches, which are divided among
    the ranks."""

    samples: int
    global_batch: int
    world_size: int
    parts: int
    steps_per_epoch: int
    epochs: int
    total_steps: int
    peak_lr: float
    warmup_steps: int

    def parts_of(self, rank: int) -> range:
        """Return the indices of a rank's micro-batches."""
        return range(*part_bounds(self.parts, self.world_size, rank))

    def batch_of(self, step: int) -> tuple[int, int]:
        """Return where the batch of `step` starts and ends in the sample order of its epoch."""
        start = step % self.steps_per_epoch * self.global_batch
        return start, min(start + self.global_batch, self.samples)

    def slices_of(self, rank: int, steps: Iterable[int]) -> Iterator[slice]:
        """Yield where a rank's micro-batches lie in the sample order of the epoch, in the order in
        which the loop takes them. An empty micro-batch gets one sample, which does not count."""
        for step in steps:
            start, end = self.batch_of(step)
            for part in self.parts_of(rank):
                first, last = part_bounds(end - start, self.parts, part)
                first = min(first, end - start - 1)
                yield slice(start + first, start + max(last, first + 1))

    def images_of(self, rank: int) -> int:
        """Return how many images of a full batch a rank processes."""
        parts = self.parts_of(rank)
        first, last = (part_bounds(self.global_batch, self.parts, p) for p in (parts[0], parts[-1]))
        return last[1] - first[0]

    def samples_by(self, step: int) -> int:
        """Return the number of images that the first `step` steps train on."""
        epochs, rest = divmod(step, self.steps_per_epoch)
        each = min(self.samples, self.steps_per_epoch * self.global_batch)
        return epochs * each + rest * self.global_batch

    def __str__(self) -> str:
        """Return how many images each rank gets: "512 = 4 x 128", "512 = 171+171+170"."""
        each = [self.images_of(rank) for rank in range(self.world_size)]
        counts = sorted(Counter(each).items(), reverse=True)
        if len(counts) == 1 or self.world_size > 8:
            return f"{self.global_batch} = " + " + ".join(f"{n} x {images}" for images, n in counts)
        return f"{self.global_batch} = " + "+".join(map(str, each))


def part_bounds(size: int, parts: int, index: int) -> tuple[int, int]:
    """Return where part `index` of `parts` starts and ends in `size` items. Parts differ in size by
    at most one, and W ranks with k parts each cut a batch just as W*k ranks with one part do."""
    return -(-size * index // parts), -(-size * (index + 1) // parts)


def make_plan(
    config: Config, samples: int, world_size: int, before: Mapping[str, Any] | None = None
) -> Plan:
    """Return the plan of a run. `before`: the plan and config in the checkpoint to resume from.

    Per-rank settings apply to the first start. If they are unchanged, a run that resumes on a different
    number of ranks keeps its global batch. With --elastic exact, it also keeps its micro-batches, except
    with --bn sync, whose statistics come from all ranks' micro-batches anyway. Raises UsageError for
    impossible sizes.
    """
    batch = config.global_batch or (config.batch_size or 128) * world_size
    parts = config.canonical_shards or world_size * config.grad_accum_steps
    if before and all(before["config"][name] == getattr(config, name) for name in BATCH_FLAGS):
        batch = before["plan"]["global_batch"]
        # with --bn sync, ranks meet in every forward pass, so all need the same number of them
        exact = config.elastic == "exact" and config.bn != "sync"
        if exact and before["plan"]["parts"] >= world_size:
            parts = before["plan"]["parts"]
    if config.canonical_shards and parts % world_size:
        raise UsageError(
            f"--canonical-shards {parts} is not divisible by {world_size}, the number of ranks; "
            f"pass a multiple of {world_size}"
        )
    if config.canonical_shards and batch % parts:
        raise UsageError(
            f"a global batch of {batch} is not divisible into {parts} canonical shards; "
            f"pass --global-batch with a multiple of {parts}"
        )
    if batch < parts:
        raise UsageError(
            f"a global batch of {batch} is too small for {parts} micro-batches (ranks: {world_size}); "
            f"raise --global-batch to at least {parts}"
        )
    steps = samples // batch if config.drop_last else -(-samples // batch)
    if steps == 0:
        raise UsageError(
            f"--drop-last drops every batch: the global batch is {batch}, but there are only "
            f"{samples} images; leave out --drop-last"
        )
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


BATCH_FLAGS = ("batch_size", "global_batch", "grad_accum_steps", "canonical_shards")

# (how much of the run after the warm-up is done, from 0 to 1; epoch; settings) -> share of the peak rate
SCHEDULES: dict[str, Callable[[float, int, Config], float]] = {
    "cosine": lambda done, epoch, c: (1 + math.cos(math.pi * done)) / 2,
    "multistep": lambda done, epoch, c: c.gamma ** sum(epoch >= m for m in c.parsed_milestones),
    "triangular": lambda done, epoch, c: 1 - done,
    "constant": lambda done, epoch, c: 1.0,
}


def lr_at(step: int, config: Config, plan: Plan) -> float:
    """Return the learning rate of optimizer step `step`, counted from 0."""
    warmup = plan.warmup_steps
    if step < warmup:
        return plan.peak_lr * (step + 1) / warmup
    done = (step - warmup) / max(1, plan.total_steps - warmup)
    share = schedule(config)(done, step // plan.steps_per_epoch, config)
    return config.min_lr + (plan.peak_lr - config.min_lr) * share


def schedule(config: Config) -> Callable[[float, int, Config], float]:
    """Return the schedule that --schedule names. Raises UsageError."""
    if is_function_name(config.schedule):
        own = named_function("--schedule", config.schedule)
        return lambda done, epoch, c: float(own(done, epoch))
    if config.schedule not in SCHEDULES:
        names = ", ".join(SCHEDULES)
        raise UsageError(
            f"--schedule {config.schedule}: unknown schedule; use {names}, or package.module:function"
        )
    return SCHEDULES[config.schedule]
