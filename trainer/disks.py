"""Which checkpoint folders are one disk, and which node keeps a second copy.

Only rank 0 writes checkpoints where all nodes share a disk. Where each node has its own, losing
node 0 would lose them all, so the first rank of one other node writes the same bytes to its own.
"""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass
from pathlib import Path

from trainer import checkpoint
from trainer.config import Config
from trainer.distributed import Ranks
from trainer.errors import CheckpointError


@dataclass(frozen=True)
class Disks:
    root: Path  # of this rank's checkpoints
    own: bool  # does this rank look after its disk? One rank a disk does.
    copy_on: int | None  # the rank that writes the second copy


def find_disks(config: Config, ranks: Ranks) -> Disks:
    """Rank 0 leaves a file and the others look for it. A collective; raises CheckpointError."""
    root = Path(config.checkpoint_dir)
    if ranks.world_size == 1:
        return Disks(root, own=True, copy_on=None)
    token = root / f".disk-{ranks.broadcast(uuid.uuid4().hex)}"
    with ranks.agreeing():
        if ranks.first:
            _touch(token)
    # The first rank of each node speaks for it; of those that share rank 0's disk, rank 0 does.
    own = ranks.first or (ranks.local_rank == 0 and not token.exists())
    owners = [rank for rank, speaks in enumerate(ranks.gather(own)) if speaks]
    if ranks.first:
        token.unlink(missing_ok=True)
    copy_on = owners[1] if len(owners) > 1 and config.copies > 1 else None
    return Disks(root, own, copy_on)


def write_copy(disks: Disks, state: dict[str, object], meta: dict[str, object], keep: int) -> str:
    """Write the second copy. Returns what went wrong, if anything: the first copy is enough to go
    on with, so a full second disk is a warning."""
    try:
        checkpoint.save(disks.root, state, meta, keep)
    except CheckpointError as error:
        return str(error)
    return ""


def _touch(token: Path) -> None:
    try:
        token.parent.mkdir(parents=True, exist_ok=True)
        checkpoint.write_synced(token, b"")
    except OSError as error:
        with contextlib.suppress(OSError):
            token.unlink()
        raise CheckpointError(
            f"cannot write to {token.parent}: {error.strerror or error}: "
            "give another --out or --checkpoint-dir"
        ) from error
