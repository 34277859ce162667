"""`trainer ckpt ls|verify|export`: inspect checkpoints without training.

    python -m trainer ckpt ls DIR              one line per checkpoint, newest last
    python -m trainer ckpt verify DIR          hash everything; exit 4 if any is damaged
    python -m trainer ckpt export DIR OUT.pth  the network's plain state_dict

DIR is a run's checkpoint folder, its ckpt/ folder, or one step-* folder.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import checkpoint
from ..errors import CheckpointError, UsageError


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="trainer ckpt", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("ls", help="list checkpoints")
    verifying = commands.add_parser("verify", help="check every byte")
    exporting = commands.add_parser("export", help="write a plain state_dict")
    for command in (listing, verifying, exporting):
        command.add_argument("dir", type=Path, help="checkpoint folder, ckpt/ or step-*")
    listing.add_argument("--json", action="store_true", help="one JSON list on stdout")
    exporting.add_argument("target", type=Path, help="file to write, e.g. resnet18.pth")
    args = parser.parse_args(list(argv))
    found = find(args.dir)
    if args.command == "ls":
        ls(found, args.json)
    elif args.command == "verify":
        return verify(found)
    else:
        export(found, args.target)
    return 0


def find(path: Path) -> list[Path]:
    """Checkpoint folders at `path`, oldest first. Raises CheckpointError if there are none."""
    if checkpoint.NAME.fullmatch(path.name):
        return [path]
    found = checkpoint.folders(path.parent if path.name == "ckpt" else path)[::-1]
    if not found:
        raise CheckpointError(f"{path}: no checkpoint there (ckpt/step-*)")
    return found


def ls(found: list[Path], as_json: bool) -> None:
    rows = [row(path) for path in found]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    for r in rows:
        if "damaged" in r:
            print(f"{r['path']}  DAMAGED {r['damaged']}")
            continue
        best = f"{100 * r['best_top1']:.2f} %" if r["best_top1"] is not None else "-"
        print(
            f"{r['path']}  epoch {r['epoch']}  {r['bytes'] / 1e6:.1f} MB  best top-1 {best}  "
            f"{r['model']}, {r['world_size']} rank(s)"
        )


def row(path: Path) -> dict[str, Any]:
    try:
        meta = json.loads((path / "meta.json").read_text())
        return {
            "path": str(path),
            "step": meta["step"],
            "epoch": meta["epoch"],
            "bytes": (path / "state.pt").stat().st_size,
            "best_top1": meta["best"].get("top1"),
            "world_size": meta["world_size"],
            "model": meta["config"]["model"],
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return {"path": str(path), "damaged": f"{type(error).__name__}: {error}"}


def verify(found: list[Path]) -> int:
    damaged = 0
    for path in found:
        try:
            saved = checkpoint.verify(path)
            print(f"{path}  intact  {saved.identity[:16]}")
        except CheckpointError as error:
            damaged += 1
            print(f"{error}  DAMAGED")
    return CheckpointError.exit_code if damaged else 0


def export(found: list[Path], target: Path) -> None:
    """From the newest intact checkpoint among `found`."""
    if target.suffix not in (".pth", ".pt"):
        raise UsageError(f"{target}: the name must end in .pth")
    for path in reversed(found):
        try:
            checkpoint.verify(path)
        except CheckpointError as error:
            print(f"skipped: {error}")
            continue
        state, meta = checkpoint.decode(checkpoint.read(path))
        checkpoint.write_weights(target, state["model"])
        print(f"{target}: {meta['config']['model']} of step {meta['step']} from {path}")
        return
    raise CheckpointError("all of these checkpoints are damaged")
