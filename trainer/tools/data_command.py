"""`trainer data fetch|make|pack|verify`: gets images, separately from training.

python -m trainer data fetch --to DIR [--name cifar100]
python -m trainer data make --from fashion-mnist --to DIR
python -m trainer data pack TREE --to DIR [--decoded 256]
python -m trainer data verify DIR
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from ..config import Config
from ..data import load_dataset
from ..data.fetch import fetch
from ..flags import Parser
from .make_images import make


def main(argv: Sequence[str]) -> int:
    """Prints the folder that --data can be given. Raises TrainerError."""
    given = make_parser().parse_args(list(argv))
    if given.act == "fetch":
        print(fetch(given.name, given.to))
    elif given.act == "make":
        print(make(given.kind, given.to, given.folder))
    elif given.act == "pack":
        from ..data.imagefolder import tree_sources  # needs PIL
        from ..data.packed import pack

        classes, training, testing = tree_sources(given.tree)
        splits = {"train": training, "val": testing}
        pack(classes, splits, given.to, given.decoded, os.cpu_count() or 1)
        print(given.to)
    else:
        verify(given.folder)
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="trainer data", description="Get images to train on.", allow_abbrev=False)
    acts = parser.add_subparsers(dest="act", required=True)
    fetch = acts.add_parser("fetch", help="download CIFAR and check it")
    fetch.add_argument("--to", type=Path, required=True, metavar="DIR")
    fetch.add_argument("--name", choices=("cifar10", "cifar100"), default="cifar10")
    make = acts.add_parser("make", help="write a set in CIFAR-10's layout")
    make.add_argument("--from", dest="kind", choices=("fashion-mnist", "synthetic"), required=True)
    make.add_argument("--folder", type=Path, help="where the files of fashion-mnist are")
    make.add_argument("--to", type=Path, required=True, metavar="DIR")
    pack = acts.add_parser("pack", help="write an ImageFolder tree into a few large files")
    pack.add_argument("tree", type=Path, metavar="TREE")
    pack.add_argument("--to", type=Path, required=True, metavar="DIR")
    pack.add_argument(
        "--decoded",
        type=int,
        default=0,
        metavar="PIXELS",
        help="store pixels, with the short side at most this long, instead of the files",
    )
    verify = acts.add_parser("verify", help="read a set whole; print its counts and digest")
    verify.add_argument("folder", type=Path, metavar="DIR")
    return parser


def verify(folder: Path) -> None:
    data = load_dataset(Config(data=str(folder)), torch.device("cpu"))
    sizes = {split: data.size(split) for split in ("train", "test")}
    print(f"{data.name}: {sizes['train']} + {sizes['test']} images, {data.num_classes} classes")
    print(f"sha256 {data.fingerprint}", file=sys.stderr)
