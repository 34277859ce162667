"""Batch-norm statistics across ranks.

With `--bn local` every rank normalises by its own micro-batch and keeps its own running mean and
variance. What is evaluated and exported is their mean over the ranks; what each rank goes on with
is its own, so that evaluating or saving never changes the training that follows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from trainer.distributed import Ranks


def norms(model: nn.Module) -> list[_BatchNorm]:
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def set_training(model: nn.Module, *, frozen: bool) -> None:
    """Training mode; frozen statistics are used and not updated."""
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
    """Running means and variances, in module order. (Counters of batches are not among them.)"""
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
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def unflatten(flat: torch.Tensor, tensors: list[torch.Tensor]) -> None:
    """Copy a flat tensor back into `tensors`."""
    with torch.no_grad():
        parts = flat.split([tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))


@contextlib.contextmanager
def averaged(model: nn.Module, ranks: Ranks, when: bool) -> Iterator[None]:
    """Inside, the running statistics are the mean over all ranks. A collective."""
    tensors = statistics(model) if when else []
    if not tensors:
        yield
        return
    own = flatten(tensors)
    # In float64, so that the mean of equal values is that value at any world size.
    unflatten(ranks.sum_(own.double()) / ranks.world_size, tensors)
    try:
        yield
    finally:
        unflatten(own, tensors)


def of_every_rank(model: nn.Module, ranks: Ranks) -> torch.Tensor:
    """Each rank's own running statistics, shape (world size, n), on the CPU. A collective."""
    own = flatten(statistics(model))
    table = torch.zeros(ranks.world_size, own.numel(), dtype=own.dtype, device=own.device)
    table[ranks.rank] = own
    return ranks.sum_(table).cpu()
