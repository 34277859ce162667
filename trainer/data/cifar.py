"""CIFAR-10 and CIFAR-100 in their own folder layouts, read without running code from the files.

    PATH/cifar-10-batches-py/{data_batch_1..5,test_batch,batches.meta}
    PATH/cifar-100-python/{train,test,meta}

The batches are pickles, and a pickle is a program. `Reader` lets it build only numpy arrays of
numbers.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import DataError
from .synthetic import Arrays

TEN, HUNDRED = "cifar-10-batches-py", "cifar-100-python"
BATCH = 10_000  # images in a file of CIFAR-10, unless its batches.meta says otherwise


def find(path: Path) -> Path | None:
    """The folder of a CIFAR layout at or under `path`."""
    for folder in (path / TEN, path / HUNDRED, path):
        if folder.name in (TEN, HUNDRED) and folder.is_dir():
            return folder
        if (folder / "data_batch_1").is_file():
            return folder
    return None


def load(folder: Path) -> Arrays:
    """Raises DataError if a file is missing, damaged or has unexpected contents."""
    if folder.name == HUNDRED:
        name, classes = "CIFAR-100", 100
        train = [_batch(folder / "train", 5 * BATCH, b"fine_labels", classes)]
        test_x, test_y = _batch(folder / "test", BATCH, b"fine_labels", classes)
    else:
        name, classes, count = "CIFAR-10", 10, _cases_per_batch(folder / "batches.meta")
        files = [folder / f"data_batch_{number}" for number in range(1, 6)]
        train = [_batch(file, count, b"labels", classes) for file in files]
        test_x, test_y = _batch(folder / "test_batch", count, b"labels", classes)
    return Arrays(
        train_x=torch.from_numpy(np.concatenate([x for x, _ in train])),
        train_y=torch.from_numpy(np.concatenate([y for _, y in train])),
        test_x=torch.from_numpy(test_x),
        test_y=torch.from_numpy(test_y),
        num_classes=classes,
        name=f"{name}'s layout",
    )


def _cases_per_batch(meta: Path) -> int:
    if not meta.exists():
        return BATCH
    count = read(meta).get(b"num_cases_per_batch", BATCH)
    return count if isinstance(count, int) else BATCH


def _batch(path: Path, count: int, labels_key: bytes, classes: int) -> tuple[Any, Any]:
    batch = read(path)
    x, labels = batch.get(b"data"), batch.get(labels_key)
    if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.shape != (count, 3072):
        found = getattr(x, "shape", "none")
        raise DataError(
            f"{path}: {count} images of 3072 bytes expected, found {found}: unpack the archive "
            "again (`python -m trainer data fetch`)"
        )
    y = np.asarray(labels, dtype=np.int64)
    if y.shape != (count,):
        raise DataError(
            f"{path}: {count} labels expected, found {len(y)}: unpack the archive again"
        )
    if y.min() < 0 or y.max() >= classes:
        raise DataError(
            f"{path}: labels from {y.min()} to {y.max()}, but there are classes 0 to {classes - 1}"
        )
    return x.reshape(count, 3, 32, 32).transpose(0, 2, 3, 1).copy(), y


def read(path: Path) -> dict[bytes, Any]:
    """A pickled table with bytes keys. Raises DataError for anything else."""
    try:
        with path.open("rb") as file:
            found = Reader(file, encoding="bytes").load()
    except FileNotFoundError:
        raise DataError(
            f"{path} is missing: fetch the set with `python -m trainer data fetch --to DIR`"
        ) from None
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except Exception as error:  # a damaged pickle can fail in any way
        raise DataError(f"{path}: damaged ({type(error).__name__}): fetch it again") from None
    if not isinstance(found, dict):
        raise DataError(f"{path}: not a CIFAR batch: fetch it again")
    return {key.encode() if isinstance(key, str) else key: value for key, value in found.items()}


class Reader(pickle.Unpickler):
    """Refuse all globals but the four that arrays of numbers need."""

    def find_class(self, module: str, name: str) -> Any:
        module = module.replace("numpy._core", "numpy.core")
        if (module, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
            return getattr(np, name)
        if (module, name) == ("numpy.core.multiarray", "_reconstruct"):
            return _reconstruct
        if (module, name) == ("_codecs", "encode"):
            return _encode
        raise DataError(f"asks for {module}.{name}, which no CIFAR file needs: refused as unsafe")


def _reconstruct(subtype: type, shape: tuple[int, ...], kind: Any) -> Any:
    """An empty array, which the pickle's state then fills."""
    if subtype is not np.ndarray or kind not in (b"b", "b"):
        raise DataError("builds something other than an array")
    return np.ndarray.__new__(np.ndarray, (0,), dtype=np.uint8)


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """How Python 3 puts bytes into old pickles. Other codecs could expand to huge sizes."""
    if encoding not in ("latin1", b"latin1"):
        raise DataError(f"asks for the codec {encoding!r}")
    return text.encode("latin1")
