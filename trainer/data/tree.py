"""The files of an ImageFolder tree, listed once per node.

Listing 1.28 million files takes time and memory. The first rank of a node that needs the list
writes it to the temporary folder, and all ranks map it into memory. It is reused,
by later runs too, until a folder in the tree changes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError
from .pictures import read

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".webp")
_SUFFIXES = tuple(suffix.encode() for suffix in SUFFIXES)


class Tree:
    """The files under one folder per class, sorted."""

    def __init__(self, folder: Path, classes: Sequence[str]) -> None:
        self._folder, self._classes = folder, classes
        index = _index(folder, classes)
        self._names, self.labels = (
            np.load(index / f"{part}.npy", mmap_mode="r") for part in ("names", "labels")
        )
        self.fingerprint = json.loads((index / "index.json").read_text())["fingerprint"]
        if not len(self.labels):
            raise DataError(f"{folder}: no images ({', '.join(SUFFIXES)}) in its class folders")

    def path(self, index: int) -> Path:
        name = os.fsdecode(bytes(self._names[index]))
        return self._folder / self._classes[int(self.labels[index])] / name

    def picture(self, index: int, edge: int) -> Any:
        path = self.path(index)
        return read(path, path, edge)


def class_names(folder: Path) -> list[str]:
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    if not names:
        raise DataError(f"{folder}: no class folders: make one folder per class")
    return names


def _index(folder: Path, classes: Sequence[str]) -> Path:
    """The folder with the list of these classes' files, written now unless it is up to date.

    Raises DataError if the tree cannot be read or the list cannot be written.
    """
    folder = folder.resolve()
    key = "\0".join([str(folder), *classes])
    index = _cache() / hashlib.sha256(os.fsencode(key)).hexdigest()[:32]
    try:
        with index.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the other ranks of this node wait here
            if not _up_to_date(index):
                _write(index, folder, classes)
    except OSError as error:
        raise DataError(f"cannot list {folder}: {error}: it needs a writable TMPDIR") from error
    return index


def _cache() -> Path:
    """A folder that only this user can write to."""
    folder = Path(tempfile.gettempdir()) / f"ddpctl-trainer-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    state = folder.lstat()
    if state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise DataError(f"{folder}: other users can write to it: remove it, or set TMPDIR")
    return folder


def _up_to_date(index: Path) -> bool:
    """Whether no folder has changed: adding, removing or renaming a file changes its folder."""
    try:
        changed: dict[str, int] = json.loads((index / "index.json").read_text())["changed"]
        return all(Path(name).stat().st_mtime_ns == time for name, time in changed.items())
    except (OSError, ValueError):
        return False


def _write(index: Path, folder: Path, classes: Sequence[str]) -> None:
    digest, changed = hashlib.sha256(), {str(folder): folder.stat().st_mtime_ns}
    names: list[np.ndarray[Any, Any]] = []
    for label, name in enumerate(classes):
        root, found = os.fsencode(folder / name), []
        for where, time, files in _listed(root) if (folder / name).is_dir() else ():
            changed[os.fsdecode(where)] = time
            below = where[len(root) + 1 :] + b"/" if where != root else b""
            found += [(below + file, size) for file, size in files]
        found.sort()
        names.append(np.array([file for file, _ in found], dtype=np.bytes_))
        digest.update(b"".join(b"%s\0%d\0%d\n" % (file, size, label) for file, size in found))
    part = index.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    np.save(part / "names.npy", np.concatenate(names))
    counts = [len(of_class) for of_class in names]
    np.save(part / "labels.npy", np.repeat(np.arange(len(classes), dtype=np.int32), counts))
    text = json.dumps({"fingerprint": digest.hexdigest(), "changed": changed})
    (part / "index.json").write_text(text)
    shutil.rmtree(index, ignore_errors=True)
    part.rename(index)


def _listed(root: bytes) -> Iterator[tuple[bytes, int, list[tuple[bytes, int]]]]:
    """Every folder from `root` down: its path, modification time, and images with sizes."""
    waiting = [root]
    while waiting:
        folder, files = waiting.pop(), []
        # Before listing, so that the next check notices a change made in between.
        time = Path(os.fsdecode(folder)).stat().st_mtime_ns
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir():
                    waiting.append(entry.path)
                elif entry.name.lower().endswith(_SUFFIXES):
                    files.append((entry.name, entry.stat().st_size))
        yield folder, time, files
