"""`trainer ckpt ls|export`: inspect checkpoints without training.

    python -m trainer ckpt ls DIR              one line per checkpoint, newest last; exit 4 if any is
                                               damaged
    python -m trainer ckpt export DIR OUT.pth  the network's plain state_dict

DIR is a run's checkpoint folder, its ckpt/ folder, or one step-* folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .. import checkpoint
from ..errors import CheckpointError, UsageError
from ..parse_flags import Parser


def main(argv: Sequence[str]) -> int:
    parser = Parser(prog="trainer ckpt", description="Inspect checkpoints.")
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("ls", help="list checkpoints and check every byte")
    exporting = commands.add_parser("export", help="write a plain state_dict")
    for command in (listing, exporting):
        command.add_argument(
            "dir",
            type=Path,
            help="a checkpoint (step-*), a ckpt/ folder, or the folder that contains ckpt/",
        )
    exporting.add_argument("target", type=Path, help="file to write, e.g. resnet18.pth")
    args = parser.parse_args(list(argv))
    folders = find(args.dir)
    if args.command == "ls":
        return ls(folders)
    export(folders, args.target)
    return 0


def find(path: Path) -> list[Path]:
    """Return the checkpoint folders at `path`, oldest first. Raises CheckpointError if there are
    none."""
    if checkpoint.NAME.fullmatch(path.name):
        return [path]
    folders = checkpoint.folders(path.parent if path.name == "ckpt" else path)[::-1]
    if not folders:
        raise CheckpointError(f"{path}: found no checkpoint (ckpt/step-*); pass a run's folder")
    return folders


def ls(folders: list[Path]) -> int:
    """Print a line for each checkpoint. Return the exit code."""
    damaged = 0
    for path in folders:
        try:
            saved = checkpoint.verify(path)
            meta = checkpoint.decode(checkpoint.read(path))[1]
            top1 = meta["best"].get("top1")
            best = "-" if top1 is None else f"{100 * top1:.2f}%"
            size = (path / "state.pt").stat().st_size / 1e6
            print(
                f"{path}  epoch {meta['epoch']}  {size:.1f} MB  best top-1 {best}  "
                f"{meta['config']['model']}, ranks: {meta['plan']['world_size']}  "
                f"intact {saved.identity[:16]}"
            )
        except CheckpointError as error:
            damaged += 1
            print(f"{error}  DAMAGED")
    return CheckpointError.exit_code if damaged else 0


def export(folders: list[Path], target: Path) -> None:
    """Write the weights of the newest intact checkpoint: the averaged ones, if it has them."""
    if target.suffix not in (".pth", ".pt"):
        raise UsageError(f"{target}: the name must end in .pth or .pt")
    for path in reversed(folders):
        try:
            checkpoint.verify(path)
        except CheckpointError as error:
            print(f"skipped: {error}")
            continue
        state, meta = checkpoint.decode(checkpoint.read(path))
        checkpoint.write_weights(target, state["ema"] or state["model"])
        print(f"{target}: {meta['config']['model']} at step {meta['step']}, from {path}")
        return
    raise CheckpointError("no checkpoint is intact, so none was exported")
