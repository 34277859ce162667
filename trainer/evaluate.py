"""Evaluation that counts every image once and gives the same numbers at any world size.

The test images are cut into fixed blocks; rank r takes blocks r, r+W, ... Each block's sums have a
row of their own in a table that is added up over ranks and then over rows, always in block order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional as F

from trainer import batchnorm
from trainer.loss import autocast
from trainer.state import Training


def evaluate(t: Training, split: str, stop: Callable[[], bool]) -> dict[str, Any] | None:
    """n, correct1, correct5, top1, top5 and loss over a split ("test" or "val"); with several ranks
    also `ranks`: top1 and loss of the images that each has seen. A collective.

    `stop` is asked on all ranks after each block; when it says yes the result is None.
    The network is called itself, never through DDP, whose forward talks to the other ranks.
    """
    size, block, world_size = t.data.size(split), t.config.eval_batch_size, t.ranks.world_size
    blocks = -(-size // block)
    table = torch.zeros(blocks, 4, dtype=torch.float64, device=t.ranks.device)
    t.model.eval()
    with evaluated(t), torch.no_grad():
        for turn in range(-(-blocks // world_size)):
            row = turn * world_size + t.ranks.rank
            if row < blocks:
                _count(t, split, row * block, min((row + 1) * block, size), table[row])
            if stop():
                return None
    table = t.ranks.sum_(table).cpu()
    result = _result(table, size, split)
    return result | (_by_rank(table, world_size) if world_size > 1 else {})


@contextlib.contextmanager
def evaluated(t: Training) -> Iterator[None]:
    """Inside, the network is the one to evaluate and export: batch-norm statistics averaged over
    ranks and, with --ema, weights averaged over steps. A collective."""
    with batchnorm.averaged(t.model, t.ranks, when=t.own_statistics), averaged_weights(t):
        yield


@contextlib.contextmanager
def averaged_weights(t: Training) -> Iterator[None]:
    if t.averages is None:
        yield
        return
    own = [parameter.detach().clone() for parameter in t.parameters]
    _copy(t.averages, t.parameters)
    try:
        yield
    finally:
        _copy(own, t.parameters)


def _copy(values: list[torch.Tensor], parameters: list[torch.nn.Parameter]) -> None:
    with torch.no_grad():
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(value)


def _count(t: Training, split: str, start: int, end: int, row: torch.Tensor) -> None:
    x, y = t.data.eval_batch(split, start, end)
    with autocast(t):
        logits = t.model(x)
    logits = logits.float()
    losses = F.cross_entropy(logits, y, reduction="none").double()
    best = logits.topk(min(5, logits.shape[1])).indices == y[:, None]
    row[0] = losses.sum()
    row[1] = best[:, 0].sum()
    row[2] = best.sum()
    row[3] = end - start


def _by_rank(table: torch.Tensor, world_size: int) -> dict[str, Any]:
    """A rank without a block of its own has null."""
    sums = [table[rank::world_size].sum(0).tolist() for rank in range(world_size)]
    top1 = [round(correct / n, 6) if n else None for _, correct, _, n in sums]
    return {
        "ranks": {"top1": top1, "loss": [round(s[0] / s[3], 6) if s[3] else None for s in sums]}
    }


def _result(table: torch.Tensor, size: int, split: str) -> dict[str, Any]:
    loss, correct1, correct5, n = table.sum(0).tolist()
    if n != size:
        raise AssertionError(f"evaluated {n:.0f} of {size} images")
    return {
        "split": split,
        "n": size,
        "correct1": int(correct1),
        "correct5": int(correct5),
        "top1": correct1 / size,
        "top5": correct5 / size,
        "loss": loss / size,
    }
