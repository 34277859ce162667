"""Choose the checkpoint that all ranks resume from, and send it to ranks that lack it.

Nodes may share a disk or have their own. Every rank reports the newest intact checkpoint that it
sees. The highest step wins; if several ranks have it, the lowest of these ranks wins. Unless all
ranks hold the same bytes, that rank sends its checkpoint to the others over the process group.

Rank 0 writes the checkpoints. Where nodes have their own disks, losing node 0 would lose them all,
so the first rank of one other node writes a second copy to its own disk.
"""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from . import checkpoint
from .checkpoint import Saved
from .config import Config
from .distributed import Ranks
from .errors import CheckpointError
from .logs import mentions_checkpoints

CHUNK = 64 << 20  # bytes per message


@dataclass(frozen=True)
class Restored:
    state: dict[str, Any]
    meta: dict[str, Any]
    files: dict[str, bytes]  # state and meta as they are on disk
    step: int
    identity: str  # equal for equal bytes
    sender: int | None  # the rank that sent the checkpoint to those without it
    warnings: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"ckpt/step-{self.step:08d}"


@dataclass(frozen=True)
class Disks:
    root: Path  # the folder with this rank's checkpoints
    own: bool  # whether this rank manages its disk; one rank per disk does
    copy_on: int | None  # the rank that writes the second copy


def find_disks(config: Config, ranks: Ranks) -> Disks:
    """Find out which ranks share a disk: rank 0 writes a file and the others look for it. A
    collective. Raises CheckpointError."""
    root = Path(config.checkpoint_dir)
    if config.test_only:  # writes nothing
        return Disks(root, own=False, copy_on=None)
    if ranks.world_size == 1:
        return Disks(root, own=True, copy_on=None)
    token = root / f".disk-{ranks.broadcast(uuid.uuid4().hex)}"
    with ranks.agreeing():
        if ranks.first:
            _touch(token)
    # The first rank of each node manages its disk; rank 0 manages the disk that it shares.
    own = ranks.first or (ranks.local_rank == 0 and not token.exists())
    owners = [rank for rank, owns in enumerate(ranks.gather(own)) if owns]
    if ranks.first:
        token.unlink(missing_ok=True)
    return Disks(root, own, copy_on=owners[1] if len(owners) > 1 else None)


def _touch(token: Path) -> None:
    try:
        token.parent.mkdir(parents=True, exist_ok=True)
        checkpoint.write_synced(token, b"")
    except OSError as error:
        with contextlib.suppress(OSError):
            token.unlink()
        raise CheckpointError(
            f"cannot write to {token.parent}: {error.strerror or error}; "
            "pass another --out or --checkpoint-dir"
        ) from error


def restore(config: Config, ranks: Ranks, *, later_attempt: bool) -> Restored | None:
    """Return the checkpoint to resume from, the same on all ranks, or None to start at step 0.
    Changes nothing on disk. A collective.

    `later_attempt`: finding nothing is an error if an earlier attempt of this run saved a
    checkpoint. Raises CheckpointError, the same on all ranks.
    """
    if config.resume == "none":
        return None
    exact = None if config.resume == "auto" else Path(config.resume)
    saved, problems = _look(config, exact)
    reports = ranks.gather((saved.step, saved.identity) if saved else None)
    # Report each damaged checkpoint once, although all ranks of a node see it.
    warnings = tuple(dict.fromkeys(p for of_rank in ranks.gather(problems) for p in of_rank))
    choice = choose(reports)
    if choice is None:
        with ranks.agreeing():
            _nothing_found(config, ranks, exact, warnings, later_attempt)
        return None
    source, (step, identity) = choice
    shared = all(report == (step, identity) for report in reports)
    with ranks.agreeing():
        files = checkpoint.read(saved.path) if saved and (shared or ranks.rank == source) else {}
    if not shared:
        files = {name: _send(files.get(name), source, ranks) for name in checkpoint.FILES}
    with ranks.agreeing():
        state, meta = checkpoint.decode(files)
    return Restored(state, meta, files, step, identity, None if shared else source, warnings)


def choose(reports: list[tuple[int, str] | None]) -> tuple[int, tuple[int, str]] | None:
    """Return (rank, (step, identity)) for the highest step that any rank holds and the lowest rank
    that holds it. Return None if no rank holds a checkpoint."""
    held = [(report, rank) for rank, report in enumerate(reports) if report]
    if not held:
        return None
    report, rank = max(held, key=lambda pair: (pair[0][0], -pair[1]))
    return rank, report


def prepare(disks: Disks, restored: Restored | None, ranks: Ranks) -> None:
    """Make each disk ready for this run's checkpoints.

    Sets aside checkpoints that are damaged or newer than the one to resume from or, if the run does not
    resume, all of them. If rank 0's disk lacks the one to resume from, writes it. A collective.
    """
    with ranks.agreeing():
        if not disks.own:
            return
        checkpoint.clean(disks.root)
        if restored is None:
            if checkpoint.folders(disks.root):
                checkpoint.set_aside(disks.root / "ckpt", "earlier")
        elif not _tidy(disks.root, restored.step, restored.identity) and ranks.first:
            checkpoint.publish(disks.root, restored.step, restored.files)


def check_fits(meta: Mapping[str, Any], identity: Mapping[str, Any], config: Config) -> list[str]:
    """Compare the settings of a checkpoint with those of this run. Return warnings about the
    differences.

    Raises CheckpointError if the network or the optimizer differs. Without --resume-override, also
    raises it if anything else in `identity` differs, such as the data, the batch or the seed. With
    --test-only, compares only the network.
    """
    before = meta["identity"]
    relevant = ["network"] if config.test_only else identity
    changed = [key for key in relevant if before.get(key) != identity[key]]
    words = [f"{key} {before.get(key)} -> {identity[key]}" for key in changed]
    never = [w for key, w in zip(changed, words, strict=True) if key in ("network", "optimizer")]
    if never:
        raise CheckpointError(
            f"the checkpoint is for another {'; '.join(never)}; "
            "use the same flags, or --resume none to start over"
        )
    if words and not config.resume_override:
        raise CheckpointError(
            f"the checkpoint was made with different settings: {', '.join(words)}; use the same "
            "settings, --resume-override to resume anyway, or --resume none to start over"
        )
    old = meta["config"]
    for setting in dataclasses.fields(config) if not config.test_only else ():
        value = getattr(config, setting.name)
        if setting.metadata["noted"] and old.get(setting.name) != value:
            words.append(f"{setting.name} {old.get(setting.name)} -> {value}")
    return [f"continuing with different settings: {word}" for word in words]


def _look(config: Config, exact: Path | None) -> tuple[Saved | None, list[str]]:
    if exact is None:
        return checkpoint.newest_intact(Path(config.checkpoint_dir))
    if exact.is_file():
        return None, [f"{exact}: not a checkpoint folder"]
    if not checkpoint.NAME.fullmatch(exact.name):
        return checkpoint.newest_intact(exact.parent if exact.name == "ckpt" else exact)
    try:
        return checkpoint.verify(exact), []
    except CheckpointError as error:
        return None, [str(error)]


def _nothing_found(
    config: Config, ranks: Ranks, exact: Path | None, warnings: tuple[str, ...], later_attempt: bool
) -> None:
    if config.test_only and exact is None and not warnings:
        raise CheckpointError(
            f"--test-only: no checkpoint in {config.checkpoint_dir}; pass a run's folder with --out"
        )
    if exact is not None:
        reason = warnings[0] if warnings else f"{exact}: found no checkpoint"
        raise CheckpointError(
            f"--resume {reason}; pass another ckpt/step-* folder, or a run's folder"
        )
    if warnings:
        raise CheckpointError(
            f"every checkpoint is damaged: {warnings[0]}; use --resume none to start over, which "
            "keeps the damaged ones"
        )
    if later_attempt and ranks.first and mentions_checkpoints(Path(config.out)):
        raise CheckpointError(
            f"{config.out}/metrics.jsonl lists checkpoints, but no rank finds one in "
            f"{config.checkpoint_dir}; restore that folder, or use --resume none to start over"
        )


def _tidy(root: Path, step: int, identity: str) -> bool:
    """Set aside damaged and newer checkpoints. Return whether the chosen one is on this disk."""
    has_it = False
    for path in checkpoint.folders(root):
        try:
            saved = checkpoint.verify(path)
        except CheckpointError:
            checkpoint.set_aside(path, "damaged")
            continue
        has_it = has_it or (saved.step, saved.identity) == (step, identity)
        if saved.step > step:  # the user chose to resume from an older one
            checkpoint.set_aside(path, "abandoned")
    return has_it


def _send(content: bytes | None, source: int, ranks: Ranks) -> bytes:
    """Return the bytes of rank `source` on every rank."""
    size = int(ranks.broadcast(len(content) if content is not None else 0, source))
    if ranks.rank == source and content is not None:
        whole = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    else:
        whole = torch.empty(size, dtype=torch.uint8)
    for piece in whole.split(CHUNK):
        dist.broadcast(piece, src=source)
    return whole.numpy().tobytes()
