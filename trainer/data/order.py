"""The sample order: pure functions of (seed, epoch, n), the same on every rank.

An epoch is a permutation of all training images, without padding; only --drop-last leaves some of
them out. A rank takes the part of each batch that `plan.part_bounds` assigns to it.
"""

from __future__ import annotations

import hashlib

import torch


def epoch_order(seed: int, epoch: int, n: int) -> torch.Tensor:
    """Return, as int64 on the CPU, the permutation of 0..n-1 in which `epoch` visits the samples.

    The generator's seed is a hash of the numbers, because with `seed + epoch`, seed 0's second epoch would
    be seed 1's first.
    """
    generator = torch.Generator()
    generator.manual_seed(mixed_seed(f"order/{seed}/{epoch}/{n}"))
    return torch.randperm(n, generator=generator)


def mixed_seed(text: str) -> int:
    """Return 63 bits of the text's sha256."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def held_out(n: int, part: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (train, validation) sample numbers, sorted. They do not depend on the run's seed, so
    that runs with different seeds are compared on the same images. If `part` is above 0, at least
    one image is held out."""
    count = max(1, int(n * part)) if part else 0
    order = epoch_order(0, -1, n) if count else torch.arange(n)
    return order[count:].sort().values, order[:count].sort().values
