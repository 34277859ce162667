"""`--canonical-shards S`: bitwise equal weights at every world size that divides S.

A plain all-reduce adds W partial sums, so its rounding depends on W. Here the batch is always cut
into S shards, each with its own batch-norm statistics and its own gradient. All S gradients go to
every rank and are added in shard order. Each rank keeps S/W gradients and receives S.

Bitwise equality also needs the same arithmetic inside a shard: the same kind of machine and the same
number of CPU threads per rank, so this mode uses one thread unless --threads says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from ..model import copy, flatten, norms, statistics, unflatten
from ..state import Training


def backward(
    t: Training,
    batch: torch.Tensor,
    micro_batch_loss: Callable[[Training, torch.Tensor, int], torch.Tensor],
) -> None:
    """Leave the gradient of the global batch's mean loss in every rank's parameters, and the mean
    over shards of the new running statistics in every rank's batch norms."""
    count = t.plan.parts_per_rank
    running = statistics(t.model) if t.config.bn == "local" else []
    before = [values.clone() for values in running]
    rows = []
    for k in range(count):
        copy(before, running)
        part = t.ranks.rank * count + k
        (micro_batch_loss(t, batch, part) / len(batch)).backward()
        gradients = [p.grad for p in t.parameters if p.grad is not None]
        rows.append(flatten([*gradients, *running]))
        t.optimizer.zero_grad()
    total = in_shard_order(torch.stack(rows), t.ranks.world_size)
    sums = unflatten(total, [*t.parameters, *running])
    for parameter, gradient in zip(t.parameters, sums, strict=False):
        parameter.grad = torch.empty_like(parameter).copy_(gradient)
    copy([total / t.plan.parts for total in sums[len(t.parameters) :]], running)
    for module in norms(t.model) if running else ():
        if module.num_batches_tracked is not None:
            module.num_batches_tracked.fill_(t.step + 1)  # not this rank's number of shards


def in_shard_order(rows: torch.Tensor, world_size: int) -> torch.Tensor:
    """Sum of all ranks' rows, added one by one in shard order. rows: (shards per rank, n)."""
    if world_size > 1:
        gathered = [torch.empty_like(rows) for _ in range(world_size)]
        dist.all_gather(gathered, rows)
        rows = torch.cat(gathered)
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total
