"""Do all ranks hold the same weights? A hash that any single flipped bit changes."""

from __future__ import annotations

import torch

from trainer.errors import ReplicaMismatch
from trainer.state import Training


def fingerprint(parameters: list[torch.nn.Parameter]) -> torch.Tensor:
    """64-bit hash of the parameters' bits, on their device. Integer sums do not depend on order."""
    total = torch.zeros((), dtype=torch.int64, device=parameters[0].device)
    for parameter in parameters:
        bits = parameter.detach().float().contiguous().view(torch.int32).reshape(-1).long()
        # An odd factor for each place: a change of one value cannot cancel out modulo 2**64.
        places = torch.arange(bits.numel(), device=bits.device) * 2654435761 * 2 + 1
        total = total * 31 + (bits * places).sum()
    return total


def check_equal(t: Training) -> None:
    """Raises ReplicaMismatch on all ranks, naming those that differ from the majority."""
    if t.ranks.world_size == 1:
        return
    table = torch.zeros(t.ranks.world_size, dtype=torch.int64, device=t.ranks.device)
    table[t.ranks.rank] = fingerprint(t.parameters)
    hashes = t.ranks.sum_(table).tolist()
    common = max(set(hashes), key=hashes.count)
    different = [str(rank) for rank, value in enumerate(hashes) if value != common]
    if different:
        raise ReplicaMismatch(
            f"step {t.step}: the weights of rank {', '.join(different)} differ from the others': "
            "faulty memory, or code that runs on some ranks only; resume goes on from before"
        )
