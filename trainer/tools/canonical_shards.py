"""`--canonical-shards S`: bitwise equal weights at every world size that divides S.

A plain all-reduce adds W partial sums, so its rounding depends on W. Here the batch is always cut
into S shards, each with its own batch-norm statistics and its own gradient; all S gradients go to
every rank and are added in shard order. Each rank keeps S/W gradients and receives S.

Bitwise equality also wants the same arithmetic inside a shard: same machine type, and same number of
CPU threads a rank, which is why this mode sets one thread unless --threads says otherwise.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from trainer import batchnorm
from trainer.loss import micro_batch_loss
from trainer.optim import part_bounds
from trainer.state import Training


def backward(t: Training, batch: torch.Tensor) -> None:
    """Leave the gradient of the global batch's mean loss in every rank's parameters, and the mean
    over shards of the new running statistics in every rank's batch norms."""
    count = t.plan.parts_per_rank
    statistics = batchnorm.statistics(t.model) if t.config.bn == "local" else []
    before = batchnorm.flatten(statistics) if statistics else None
    rows = []
    for k in range(count):
        first, last = part_bounds(len(batch), t.plan.parts, t.ranks.rank * count + k)
        if before is not None:
            batchnorm.unflatten(before, statistics)
        (micro_batch_loss(t, t.net, batch, first, last) / len(batch)).backward()
        gradients = [p.grad for p in t.parameters if p.grad is not None]
        rows.append(batchnorm.flatten([*gradients, *statistics]))
        t.optimizer.zero_grad()
    total = in_shard_order(torch.stack(rows), t.ranks.world_size)
    gradient_size = sum(p.numel() for p in t.parameters)
    for parameter in t.parameters:
        parameter.grad = torch.empty_like(parameter)
    batchnorm.unflatten(total[:gradient_size], [p.grad for p in t.parameters])  # type: ignore[misc]
    if statistics:
        batchnorm.unflatten(total[gradient_size:] / t.plan.parts, statistics)
        batchnorm.count_batches(t.model, t.step + 1)  # not the number of shards of this rank


def in_shard_order(rows: torch.Tensor, world_size: int) -> torch.Tensor:
    """Sum of all ranks' rows, added one by one in the order of shards. rows: (shards a rank, n)."""
    if world_size > 1:
        gathered = [torch.empty_like(rows) for _ in range(world_size)]
        dist.all_gather(gathered, rows)
        rows = torch.cat(gathered)
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total
