"""Which checkpoint all ranks go on from, and how a rank that lacks it gets it.

Disks may be shared by all nodes or belong to one: every rank reports the newest whole checkpoint
that it sees, the highest step wins (the lowest rank's, where two differ), and unless all ranks hold
the very same bytes that rank sends them to the others over the process group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainer import checkpoint
from trainer.checkpoint import Saved
from trainer.config import Config
from trainer.disks import Disks
from trainer.distributed import Ranks
from trainer.errors import CheckpointError
from trainer.logs import has_checkpoints

CHUNK = 64 << 20  # bytes sent at a time


@dataclass(frozen=True)
class Restored:
    state: dict[str, Any]
    meta: dict[str, Any]
    name: str  # step-00001234
    identity: str
    sender: int | None  # the rank that sent it to those that lacked it
    warnings: tuple[str, ...]


def restore(config: Config, ranks: Ranks, disks: Disks, *, asked_again: bool) -> Restored | None:
    """The state to go on from, the same on all ranks; None: there is none, begin at step 0.

    `asked_again`: this is a further attempt of a run, so finding nothing is worth a warning, and an
    error if an earlier attempt did save. Raises CheckpointError, on all ranks alike.
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
    # Each damaged checkpoint once, though all ranks of a node see it.
    warnings = tuple(dict.fromkeys(p for of_rank in ranks.gather(problems) for p in of_rank))
    choice = choose(reports)
    if choice is None:
        with ranks.agreeing():
            _nothing_found(config, ranks, exact, warnings, asked_again)
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
    return Restored(state, meta, f"step-{step:08d}", identity, sender, warnings)


def choose(reports: list[tuple[int, str] | None]) -> tuple[int, tuple[int, str]] | None:
    """(rank, (step, identity)): the highest step that any rank holds, of the lowest such rank."""
    held = [(report, -rank) for rank, report in enumerate(reports) if report]
    if not held:
        return None
    step = max(report[0] for report, _ in held)
    report, rank = max((h for h in held if h[0][0] == step), key=lambda h: h[1])
    return -rank, report


def check_fits(meta: Mapping[str, Any], now: Mapping[str, Any], override: bool) -> list[str]:
    """Compare what a checkpoint was made with to what this run is. Returns what changed.

    Raises CheckpointError for another network, and for other data, batch or seed unless overridden.
    """
    before = meta["identity"]
    changed = [key for key in now if before.get(key) != now[key]]
    words = [f"{key} {before.get(key)} -> {now[key]}" for key in changed]
    never = [w for key, w in zip(changed, words, strict=True) if key in ("network", "optimizer")]
    if never:
        raise CheckpointError(
            f"the checkpoint is of another {'; '.join(never)}: "
            "use the same flags, or --resume none to begin anew"
        )
    if words and not override:
        raise CheckpointError(
            f"the checkpoint was made with other settings: {'; '.join(words)}: use the same, "
            "--resume-override to go on all the same, or --resume none to begin anew"
        )
    return words


def _look(config: Config, exact: Path | None) -> tuple[Saved | None, list[str]]:
    if exact is None:
        return checkpoint.newest_whole(Path(config.checkpoint_dir))
    if exact.is_file():
        return None, [f"{exact}: a file of weights only: give a ckpt/step-* folder"]
    if not checkpoint.NAME.fullmatch(exact.name):
        return checkpoint.newest_whole(exact.parent if exact.name == "ckpt" else exact)
    try:
        return checkpoint.verify(exact), []
    except CheckpointError as error:
        return None, [str(error)]


def _nothing_found(
    config: Config, ranks: Ranks, exact: Path | None, warnings: tuple[str, ...], asked_again: bool
) -> None:
    if config.test_only and exact is None and not warnings:
        raise CheckpointError(f"--test-only: no checkpoint in {config.checkpoint_dir}")
    if exact is not None:
        reason = warnings[0] if warnings else f"{exact}: no checkpoint there"
        raise CheckpointError(f"--resume {reason}")
    if warnings:
        raise CheckpointError(
            f"no checkpoint is whole: {warnings[0]}: --resume none begins anew and keeps these aside"
        )
    if asked_again and ranks.first and has_checkpoints(Path(config.out)):
        raise CheckpointError(
            f"{config.out}/metrics.jsonl tells of checkpoints, and no rank sees one in "
            f"{config.checkpoint_dir}: bring that folder back, or --resume none to begin anew"
        )


def _tidy(root: Path, step: int, identity: str) -> bool:
    """Put aside what could be taken for the chosen checkpoint later. Is that one here?"""
    has_it = False
    for path in checkpoint.folders(root):
        try:
            saved = checkpoint.verify(path)
        except CheckpointError:
            checkpoint.set_aside(path, "damaged")
            continue
        has_it = has_it or (saved.step, saved.identity) == (step, identity)
        if saved.step > step:  # the user chose to go on from an older one
            checkpoint.set_aside(path, "abandoned")
    return has_it


def _send(content: bytes | None, source: int, ranks: Ranks) -> bytes:
    """The bytes that `source` has, on every rank."""
    size = int(ranks.broadcast(len(content) if content is not None else 0, source))
    if ranks.rank == source and content is not None:
        whole = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    else:
        whole = torch.empty(size, dtype=torch.uint8)
    for piece in whole.split(CHUNK):
        dist.broadcast(piece, src=source)
    return whole.numpy().tobytes()
