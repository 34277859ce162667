"""CIFAR-10 and CIFAR-100 in their own folder layouts, read without running code from the files.

    PATH/cifar-10-batches-py/{data_batch_1..5,test_batch,batches.meta}
    PATH/cifar-100-python/{train,test,meta}

The batches are pickles, and a pickle is a program. `Reader` calls nothing that the file names.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from ..errors import DataError
from .synthetic import Arrays

TEN, HUNDRED = "cifar-10-batches-py", "cifar-100-python"
BATCH = 10_000  # images in a file of CIFAR-10, unless its batches.meta says otherwise
LARGEST = 1 << 30  # bytes; CIFAR-100's training file takes 155 MB
FETCH_AGAIN = (
    "remove its folder and fetch the dataset again with `python -m trainer data fetch --to DIR` "
    "(for CIFAR-100, add `--name cifar100`)"
)
INTEGERS = (b"u1", b"i1", b"u2", b"i2", b"u4", b"i4", b"u8", b"i8")
NAMES = (  # what pickles of numpy's arrays of numbers and of Python 3's bytes refer to
    *("numpy.ndarray", "numpy.dtype", "numpy.core.multiarray._reconstruct"),
    *("numpy.core.numeric._frombuffer", "_codecs.encode"),
)
UNSAFE = (  # opcodes that create objects in other ways
    *(pickle.NEWOBJ, pickle.NEWOBJ_EX, pickle.INST, pickle.OBJ, pickle.PERSID, pickle.BINPERSID),
    *(pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.NEXT_BUFFER, pickle.READONLY_BUFFER),
)


def find(path: Path) -> Path | None:
    """Return the folder of a CIFAR layout at or under `path`, or None."""
    for folder in (path / TEN, path / HUNDRED, path):
        if folder.name in (TEN, HUNDRED) and folder.is_dir():
            return folder
        if (folder / "data_batch_1").is_file():
            return folder
    return None


def load(folder: Path) -> Arrays:
    """Return the images in a folder.

    Raises DataError if a file is missing, damaged or not in CIFAR's format.
    """
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
    return count if type(count) is int else BATCH


def _batch(path: Path, count: int, labels_key: bytes, classes: int) -> tuple[Any, Any]:
    batch = read(path)
    try:
        x, y = (numbers(batch.get(key)) for key in (b"data", labels_key))
    except Exception as error:  # records of a hostile file can be anything
        raise DataError(f"{path}: damaged ({type(error).__name__}); {FETCH_AGAIN}") from None
    if x is None or x.dtype != np.uint8 or x.shape != (count, 3072):
        shape = "none" if x is None else f"{x.shape} of {x.dtype}"
        raise DataError(
            f"{path}: expected {count} images of 3072 bytes, found {shape}; {FETCH_AGAIN}"
        )
    if y is None or y.shape != (count,):
        shape = "none" if y is None else f"{y.shape}"
        raise DataError(f"{path}: expected {count} labels, found {shape}; {FETCH_AGAIN}")
    if y.min() < 0 or y.max() >= classes:
        raise DataError(
            f"{path}: labels from {y.min()} to {y.max()}, but the classes are 0 to {classes - 1}; "
            "correct the labels"
        )
    return x.reshape(count, 3, 32, 32).transpose(0, 2, 3, 1).copy(), y.astype(np.int64)


def numbers(value: object) -> np.ndarray[Any, Any] | None:
    """Return the integers in a list or a numpy array's record, or None for anything else."""
    if isinstance(value, list) and all(type(item) is int for item in value):
        return np.array(value, dtype=np.int64)
    if not isinstance(value, Record):
        return None
    if value.name == "numpy.core.multiarray._reconstruct":
        _, shape, kind, fortran, content = value.state
    else:  # numpy._core.numeric._frombuffer
        content, kind, shape, order = value.arguments
        fortran = order == "F"
    flat = np.frombuffer(text(content), integers(kind))
    return flat.reshape(shape, order="F" if fortran else "C")


def integers(kind: Record) -> np.dtype[Any]:
    """Return the type of integers that a record of numpy.dtype stands for. Raises ValueError."""
    name, order = text(kind.arguments[0]), text(kind.state[1])
    if name not in INTEGERS or order not in (b"<", b">", b"|"):
        raise ValueError("not an array of integers")
    return np.dtype((order + name).decode())


def text(value: object) -> bytes:
    """Return a pickled value's bytes. Old protocols store Python 3's bytes as text that must
    be encoded."""
    if isinstance(value, Record) and value.name == "_codecs.encode":
        value, codec = value.arguments
        if codec not in ("latin1", b"latin1"):
            raise ValueError("not bytes")
    if isinstance(value, str):
        return value.encode("latin1")
    if not isinstance(value, bytes):
        raise ValueError("not bytes")
    return value


def read(path: Path) -> dict[bytes, Any]:
    """Return the dict in a pickle file, with its keys as bytes. Raises DataError for other files."""
    try:
        if path.stat().st_size > LARGEST:
            raise DataError(f"larger than {LARGEST >> 20} MB, which no CIFAR file is")
        table = Reader(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        return {text(key): value for key, value in dict.items(table)}
    except FileNotFoundError:
        raise DataError(f"{path} is missing; {FETCH_AGAIN}") from None
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except Exception as error:  # a damaged pickle can fail in any way
        raise DataError(f"{path}: damaged ({type(error).__name__}); {FETCH_AGAIN}") from None


class Record:
    """A call that a pickle asks for: the function, its arguments, and the state to set later."""

    def __init__(self, name: str, arguments: tuple[Any, ...]) -> None:
        self.name, self.arguments = name, arguments
        self.state: tuple[Any, ...] = ()


class Reader(pickle._Unpickler):
    """Reads a pickle without calling anything: a name stays text, and a call becomes a Record."""

    dispatch: ClassVar[Any] = {
        code: read
        for code, read in pickle._Unpickler.dispatch.items()
        if bytes([code]) not in UNSAFE
    }
    stack: list[Any]  # these three belong to the base class
    append: Any
    read: Any

    def find_class(self, module: str, name: str) -> str:
        full = f"{module}.{name}".replace("numpy._core.", "numpy.core.")
        if full not in NAMES:
            raise DataError(f"asks for {full}, which no CIFAR file needs: refused as unsafe")
        return full

    def load_reduce(self) -> None:
        arguments = self.stack.pop()
        self.stack[-1] = Record(self.stack[-1], arguments)

    def load_build(self) -> None:
        state = self.stack.pop()
        self.stack[-1].state = state

    def load_bytes(self) -> None:
        """Read a bytearray as bytes. numpy writes the data of arrays as bytearrays.

        Allocates no more than the file has, even if the pickle claims a larger size.
        """
        self.append(self.read(int.from_bytes(self.read(8), "little")))

    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.BYTEARRAY8[0]] = load_bytes
