"""Choose the checkpoint that all ranks resume from, and send it to ranks that lack it.

Nodes may share a disk or have their own. Every rank reports the newest intact checkpoint that it
sees. The highest step wins (of the lowest rank, where two differ); unless all ranks hold the same
bytes, that rank sends them to the others over the process group.

Rank 0 writes the checkpoints. Where nodes have their own disks, losing node 0 would lose them all,
so the first rank of one other node writes a second copy to its own.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
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

NOTED = (  # settings that may change on resume, with a warning: they change the results
    *("lr", "lr_scaling", "lr_base_size", "schedule", "warmup_epochs", "milestones", "gamma"),
    *("min_lr", "epochs", "max_steps", "momentum", "nesterov", "weight_decay", "loss"),
    *("norm_weight_decay", "label_smoothing", "clip_grad_norm", "ema", "bn", "amp"),
    *("compile", "compile_mode", "deterministic", "grad_compression"),
    *("randaugment", "cutout", "mixup", "cutmix"),
)
CHUNK = 64 << 20  # bytes per message


@dataclass(frozen=True)
class Restored:
    state: dict[str, Any]
    meta: dict[str, Any]
    name: str  # step-00001234
    sender: int | None  # the rank that sent it to ranks without it
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Disks:
    root: Path  # has this rank's checkpoints
    own: bool  # whether this rank manages its disk; one rank per disk does
    copy_on: int | None  # the rank that writes the second copy


def find_disks(config: Config, ranks: Ranks) -> Disks:
    """Rank 0 writes a file and the others look for it. A collective. Raises CheckpointError."""
    root = Path(config.checkpoint_dir)
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
    copy_on = owners[1] if len(owners) > 1 and config.copies > 1 else None
    return Disks(root, own, copy_on)


def _touch(token: Path) -> None:
    try:
        token.parent.mkdir(parents=True, exist_ok=True)
        checkpoint.write_synced(token, b"")
    except OSError as error:
        with contextlib.suppress(OSError):
            token.unlink()
        raise CheckpointError(
            f"cannot write to {token.parent}: {error.strerror or error}: "
            "pass another --out or --checkpoint-dir"
        ) from error


def restore(config: Config, ranks: Ranks, disks: Disks, *, later_attempt: bool) -> Restored | None:
    """The state to resume from, the same on all ranks. None: start at step 0.

    `later_attempt`: finding nothing is an error if an earlier attempt of this run did save.
    Raises CheckpointError on all ranks alike.
    """
    if config.resume == "none":
        with ranks.agreeing():
            if disks.own:
                checkpoint.set_aside(disks.root / "ckpt", "earlier")
        return None
    if disks.own and not config.test_only:
        checkpoint.clean(disks.root)
    exact = None if config.resume == "auto" else Path(config.resume)
    found, problems = _look(config, exact)
    reports = ranks.gather((found.step, found.identity) if found else None)
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
        files = checkpoint.read(found.path) if found and (shared or ranks.rank == source) else {}
    if not shared:
        files = {name: _send(files.get(name), source, ranks) for name in checkpoint.FILES}
    with ranks.agreeing():
        state, meta = checkpoint.decode(files)
    with ranks.agreeing():
        if disks.own and not config.test_only:
            has_it = _tidy(disks.root, step, identity)
            if ranks.first and not has_it:
                checkpoint.publish(disks.root, step, files)
    sender = None if shared else source
    return Restored(state, meta, f"step-{step:08d}", sender, warnings)


def choose(reports: list[tuple[int, str] | None]) -> tuple[int, tuple[int, str]] | None:
    """(rank, (step, identity)): the highest step that any rank holds, of the lowest such rank."""
    held = [(report[0], -rank) for rank, report in enumerate(reports) if report]
    if not held:
        return None
    _, rank = max(held)
    return -rank, reports[-rank]  # type: ignore[return-value]


def check_fits(
    meta: Mapping[str, Any], identity: Mapping[str, Any], config: Config, parts: int
) -> list[str]:
    """Compare the settings of a checkpoint with those of this run. Returns the differences that
    the user may intend or has overridden.

    Raises CheckpointError if the network differs, or data, batch or seed unless overridden.
    """
    before = meta["identity"]
    changed = [key for key in identity if before.get(key) != identity[key]]
    words = [f"{key} {before.get(key)} -> {identity[key]}" for key in changed]
    never = [w for key, w in zip(changed, words, strict=True) if key in ("network", "optimizer")]
    if never:
        raise CheckpointError(
            f"the checkpoint is for another {'; '.join(never)}: "
            "use the same flags, or --resume none to start over"
        )
    if words and not config.resume_override:
        raise CheckpointError(
            f"the checkpoint was made with other settings: {'; '.join(words)}: use the same, "
            "--resume-override to resume anyway, or --resume none to start over"
        )
    old, new = meta["config"], asdict(config)
    words += [f"{key} {old.get(key)} -> {new[key]}" for key in NOTED if old.get(key) != new[key]]
    if config.bn == "local" and meta["parts"] != parts:
        words.append(f"micro-batches with their own statistics {meta['parts']} -> {parts}")
    return [f"continuing with other settings: {word}" for word in words]


def _look(config: Config, exact: Path | None) -> tuple[Saved | None, list[str]]:
    if exact is None:
        return checkpoint.newest_intact(Path(config.checkpoint_dir))
    if exact.is_file():
        return None, [f"{exact}: not a checkpoint folder: pass a ckpt/step-* folder"]
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
        raise CheckpointError(f"--test-only: no checkpoint in {config.checkpoint_dir}")
    if exact is not None:
        reason = warnings[0] if warnings else f"{exact}: no checkpoint there"
        raise CheckpointError(f"--resume {reason}")
    if warnings:
        raise CheckpointError(
            f"every checkpoint is damaged: {warnings[0]}: --resume none starts over and keeps these"
        )
    if later_attempt and ranks.first and mentions_checkpoints(Path(config.out)):
        raise CheckpointError(
            f"{config.out}/metrics.jsonl lists checkpoints, but no rank finds one in "
            f"{config.checkpoint_dir}: restore that folder, or --resume none to start over"
        )


def _tidy(root: Path, step: int, identity: str) -> bool:
    """Set aside damaged and newer checkpoints. Returns whether the chosen one is on this disk."""
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
    """The bytes of rank `source`, on every rank."""
    size = int(ranks.broadcast(len(content) if content is not None else 0, source))
    if ranks.rank == source and content is not None:
        whole = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    else:
        whole = torch.empty(size, dtype=torch.uint8)
    for piece in whole.split(CHUNK):
        dist.broadcast(piece, src=source)
    return whole.numpy().tobytes()
