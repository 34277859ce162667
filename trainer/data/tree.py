"""ImageFolder trees: PATH/train/CLASS/*.jpg and PATH/val/CLASS/*.jpg, at any depth below CLASS."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError
from .pictures import read

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".webp")
TEST_FOLDERS = ("val", "test")


class Tree:
    """The images below one folder per class, sorted. Hidden files and folders do not count."""

    def __init__(self, folder: Path, classes: Sequence[str]) -> None:
        self.folder = folder
        names: list[bytes] = []
        counts, digest = [], hashlib.sha256()
        for label, name in enumerate(classes):
            images = sorted(listed(folder, name)) if (folder / name).is_dir() else []
            if (folder / name).is_dir() and not images:
                raise DataError(
                    f"{folder / name}: no images ({', '.join(SUFFIXES)}); remove the folder"
                )
            names += [file for file, _ in images]
            counts.append(len(images))
            digest.update(b"".join(b"%s\0%d\0%d\n" % (*image, label) for image in images))
        self._names = np.array(names)  # takes a quarter of a list's memory
        self.labels = np.repeat(np.arange(len(classes)), counts)
        self.fingerprint = digest.hexdigest()

    def path(self, index: int) -> Path:
        return self.folder / os.fsdecode(bytes(self._names[index]))

    def picture(self, index: int, edge: int) -> Any:
        return read(self.path(index), self.path(index), edge)


def listed(root: Path, below: str) -> Iterator[tuple[bytes, int]]:
    """Yield the path, relative to `root`, and the size of every image in or below a folder."""
    try:
        with os.scandir(root / below) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    yield from listed(root, f"{below}/{entry.name}")
                elif entry.name.lower().endswith(SUFFIXES):
                    yield os.fsencode(f"{below}/{entry.name}"), entry.stat().st_size
    except OSError as error:
        raise DataError(f"{error.filename or root / below}: {error.strerror}") from error


def open_tree(path: Path) -> tuple[list[str], Tree, Tree]:
    """Return the classes, the training images and the test images of a tree. Raises DataError."""
    if not (path / "train").is_dir():
        raise DataError(f"{path}: has no train/; pass the folder that has train/ and val/")
    test = next((path / name for name in TEST_FOLDERS if (path / name).is_dir()), None)
    if test is None:
        raise DataError(f"{path}: has train/ but neither val/ nor test/; add one")
    classes, tested = class_names(path / "train"), class_names(test)
    if extra := sorted(set(tested) - set(classes)):
        raise DataError(f"{test}: class {extra[0]!r} is not in train/; rename or remove it")
    return classes, Tree(path / "train", classes), Tree(test, classes)


def class_names(folder: Path) -> list[str]:
    names = (entry.name for entry in folder.iterdir() if entry.is_dir())
    classes = sorted(name for name in names if not name.startswith("."))
    if not classes:
        raise DataError(f"{folder}: no class folders; make one folder per class")
    return classes
