"""`trainer data fetch|make|pack|verify`: prepare images, separately from training.

python -m trainer data fetch --to DIR [--name cifar100]
python -m trainer data make --from fashion-mnist --to DIR
python -m trainer data pack TREE --to DIR [--decoded 256]
python -m trainer data verify DIR

`make` writes images in CIFAR-10's layout: Fashion-MNIST, or synthetic ones.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import os
import pickle
import shutil
import sys
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from ..config import Config
from ..data import load_dataset
from ..data.cifar import TEN
from ..data.fetch import fetch
from ..data.synthetic import Arrays, synthetic
from ..errors import DataError
from ..parse_flags import Parser

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")  # from a Debian package


def main(argv: Sequence[str]) -> int:
    """Run the command. Unless it is `verify`, print the folder to pass with --data. Raises
    TrainerError."""
    given = make_parser().parse_args(list(argv))
    if given.act == "verify":
        verify(given.folder)
        return 0
    try:
        print(prepare(given))
    except OSError as error:
        what = error.strerror or error
        remedy = "check the free space (`df -h`) and the permissions"
        raise DataError(f"{error.filename or given.to}: {what}; {remedy}") from None
    return 0


def prepare(given: argparse.Namespace) -> Path:
    """Fetch, make or pack images, and return their folder."""
    if given.act == "fetch":
        return fetch(given.name, given.to)
    if given.act == "make":
        return make(given.kind, given.to, given.folder)
    from ..data.packed import pack  # needs PIL
    from ..data.tree import open_tree

    classes, training, testing = open_tree(given.tree)
    splits = {"train": training, "val": testing}
    pack(classes, splits, given.to, given.decoded, os.cpu_count() or 1)
    return Path(given.to)


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="trainer data", description="Get images to train on.")
    acts = parser.add_subparsers(dest="act", required=True)
    fetch = acts.add_parser("fetch", help="download CIFAR and check it")
    fetch.add_argument("--to", type=Path, required=True, metavar="DIR")
    fetch.add_argument("--name", choices=("cifar10", "cifar100"), default="cifar10")
    make = acts.add_parser("make", help="write a dataset in CIFAR-10's layout")
    make.add_argument("--from", dest="kind", choices=("fashion-mnist", "synthetic"), required=True)
    make.add_argument("--folder", type=Path, help="folder with the fashion-mnist files")
    make.add_argument("--to", type=Path, required=True, metavar="DIR")
    pack = acts.add_parser("pack", help="store an ImageFolder tree in a few large files")
    pack.add_argument("tree", type=Path, metavar="TREE")
    pack.add_argument("--to", type=Path, required=True, metavar="DIR")
    pack.add_argument(
        "--decoded",
        type=int,
        default=0,
        metavar="PIXELS",
        help="instead of the files, store decoded pixels, with the short side at most PIXELS long",
    )
    verify = acts.add_parser("verify", help="read a whole dataset and print its counts and digest")
    verify.add_argument("folder", type=Path, metavar="DIR")
    return parser


def verify(folder: Path) -> None:
    """Read every image of a dataset, and print its counts and digest. Raises DataError."""
    config = Config(data=str(folder), augment="none", workers=os.cpu_count() or 1)
    data = load_dataset(config, torch.device("cpu"))
    train, test = data.size("train"), data.size("test")
    with contextlib.closing(data):
        for _ in data.train_batches(torch.arange(train), blocks(train), seed=0, epoch=0):
            pass
        for _ in data.eval_batches("test", blocks(test)):
            pass
    if (folder / "pack.json").is_file():
        from ..data.packed import open_pack  # needs PIL

        for images in open_pack(folder)[1:]:
            images.check()
    print(f"{data.name}: {train} + {test} images, {data.num_classes} classes")
    print(f"sha256 {data.fingerprint}", file=sys.stderr)


def blocks(size: int) -> list[slice]:
    return [slice(n, min(n + 100, size)) for n in range(0, size, 100)]


def make(kind: str, to: Path, source: Path | None) -> Path:
    if kind == "fashion-mnist":
        images = fashion_mnist(source or FASHION_MNIST)
        # CIFAR's counts: 5 x 10,000 and 10,000
        few = replace(images, train_x=images.train_x[:50_000], train_y=images.train_y[:50_000])
        return write_cifar10(few, to)
    return write_cifar10(synthetic(5000, 1000, 10, 32), to)


def fashion_mnist(folder: Path = FASHION_MNIST) -> Arrays:
    """Return 60,000 + 10,000 gray 28x28 images, padded to 32x32, with equal R, G and B."""
    if not folder.is_dir():
        raise DataError(
            f"{folder} is missing; run `apt-get install dataset-fashion-mnist`, "
            "or pass --folder DIR"
        )
    return Arrays(
        train_x=_idx_images(folder / "train-images-idx3-ubyte.gz"),
        train_y=_idx_labels(folder / "train-labels-idx1-ubyte.gz"),
        test_x=_idx_images(folder / "t10k-images-idx3-ubyte.gz"),
        test_y=_idx_labels(folder / "t10k-labels-idx1-ubyte.gz"),
        num_classes=10,
        name="Fashion-MNIST",
    )


def _idx_images(path: Path) -> torch.Tensor:
    """Return (N, 32, 32, 3) uint8 from IDX's format: magic, count, rows, columns (big-endian), pixels."""
    content = _unzipped(path)
    count, rows, columns = (int(n) for n in np.frombuffer(content, ">i4", 3, offset=4))
    gray = np.frombuffer(content, np.uint8, offset=16).reshape(count, rows, columns)
    border = ((0, 0), ((32 - rows) // 2,) * 2, ((32 - columns) // 2,) * 2)
    return torch.from_numpy(np.repeat(np.pad(gray, border)[..., None], 3, axis=3))


def _idx_labels(path: Path) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(_unzipped(path), np.uint8, offset=8).astype(np.int64))


def _unzipped(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: {reason}; install the dataset again") from None


def write_cifar10(arrays: Arrays, to: Path) -> Path:
    """Write five training batches, a test batch and batches.meta. Once all are complete, they become
    or replace `to`/cifar-10-batches-py, which is returned."""
    if len(arrays.train_y) % 5:
        raise DataError(f"{len(arrays.train_y)} images cannot be divided into five equal batches")
    count = min(len(arrays.train_y) // 5, len(arrays.test_y))
    scratch, folder = to / f".{TEN}.part", to / TEN
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    for number in range(5):
        part = slice(number * count, (number + 1) * count)
        name = f"data_batch_{number + 1}"
        _write_batch(scratch / name, arrays.train_x[part], arrays.train_y[part])
    _write_batch(scratch / "test_batch", arrays.test_x[:count], arrays.test_y[:count])
    meta = {b"num_cases_per_batch": count, b"num_vis": 3072}
    (scratch / "batches.meta").write_bytes(pickle.dumps(meta, protocol=2))
    shutil.rmtree(folder, ignore_errors=True)
    scratch.replace(folder)
    return folder


def _write_batch(path: Path, x: torch.Tensor, y: torch.Tensor) -> None:
    rows = x.permute(0, 3, 1, 2).reshape(len(x), 3072).contiguous().numpy()
    batch = {b"batch_label": path.name.encode(), b"labels": y.tolist(), b"data": rows}
    path.write_bytes(pickle.dumps(batch, protocol=2))
