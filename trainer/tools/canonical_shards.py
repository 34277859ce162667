"""`--canonical-shards S`: bitwise equal weights at every world size that divides S.

A plain all-reduce adds W partial sums, so its rounding depends on W. Here, the batch is always cut
into S shards, each with its own batch-norm statistics and its own gradient. All S gradients go to
every rank and are added in shard order. Each rank keeps S/W gradients and receives S.

Bitwise equality also needs the same arithmetic inside a shard: the same kind of machine and the same
number of CPU threads per rank, so this mode uses one thread unless --threads says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from ..model import flatten, unflatten
from ..state import Training


def backward(t: Training, size: int, micro_batch_loss: Callable[[int], torch.Tensor]) -> None:
    """Leave the gradient of the batch's mean loss in every rank's parameters.

    Also leave the new running statistics, averaged over shards, in every rank's network. size: the
    number of images in the batch.
    """
    buffers, parameters = t.net.part_buffers(), t.net.trainable
    rows = []
    for part in t.plan.parts_of(t.ranks.rank):
        buffers.restore()
        (micro_batch_loss(part) / size).backward()
        used = [p.grad is not None for p in parameters]  # the same ones in every shard
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        rows.append(torch.cat([flatten(gradients), buffers.change().float()]))
        t.optimizer.zero_grad()
    total = in_shard_order(torch.stack(rows), t.ranks.world_size)
    length = sum(parameter.numel() for parameter in parameters)
    sums = unflatten(total[:length], parameters)
    for parameter, gradient, has_one in zip(parameters, sums, used, strict=True):
        parameter.grad = torch.empty_like(parameter).copy_(gradient) if has_one else None
    buffers.apply(total[length:] / t.plan.parts)


def in_shard_order(rows: torch.Tensor, world_size: int) -> torch.Tensor:
    """Return the sum of all ranks' rows, added one by one in shard order. rows: (shards per rank, n)."""
    if world_size > 1:
        gathered = [torch.empty_like(rows) for _ in range(world_size)]
        dist.all_gather(gathered, rows)
        rows = torch.cat(gathered)
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total
