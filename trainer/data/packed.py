"""`trainer data pack`: an ImageFolder tree in a few large files, which are mapped into memory.

    DIR/pack.json              classes, and the sha256 of each split's bytes
    DIR/train/index.npy        the position of each picture: an array of ENTRY
    DIR/train/00000.bin ...    the pictures: the original files, or decoded and resized pixels
    DIR/val/...

Reading a picture opens no file and lists no folder; decoded pictures need only be cropped.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..errors import DataError
from .pictures import read, shrunk
from .tree import Tree

ENTRY = np.dtype(
    [("shard", "<u4"), ("offset", "<u8"), ("size", "<u4"), ("width", "<u4"), ("height", "<u4")]
    + [("label", "<u4")]
)  # width and height are 0 for a picture that is not decoded
SHARD = 1 << 30  # bytes after which a new file starts
AT_ONCE = 256  # pictures read before they are written

Item = tuple[bytes, int, int]  # a picture's bytes, width and height


class Packed:
    """One split of a pack."""

    def __init__(self, folder: Path, fingerprint: str, classes: int) -> None:
        self._folder, self.fingerprint = folder, fingerprint
        try:
            self._index = index = np.load(folder / "index.npy", mmap_mode="r")
            if index.dtype != ENTRY or not index.size or index["label"].max() >= classes:
                raise ValueError("index.npy is not the index of this pack")
            shards = range(min(int(index["shard"].max()) + 1, len(index)))
            self._shards = [np.memmap(_shard(folder, n), np.uint8, "r") for n in shards]
            lengths = np.array([len(shard) for shard in self._shards])
            ends = index["offset"].astype(np.float64) + index["size"]  # cannot overflow
            pixels = index["width"].astype(np.float64) * index["height"] * 3
            decoded = index["width"] > 0
            if (ends > lengths[index["shard"]]).any() or (pixels != index["size"])[decoded].any():
                raise ValueError("index.npy has a wrong position or size for a picture")
        except (OSError, EOFError, ValueError, IndexError) as error:
            raise DataError(f"{folder}: {error}; pack the images again") from error
        self.labels = index["label"]

    def picture(self, index: int, edge: int) -> Any:
        entry, content = self._index[index], self._content(index)
        if entry["width"]:
            size = (int(entry["width"]), int(entry["height"]))
            return Image.frombuffer("RGB", size, content, "raw", "RGB", 0, 1)
        return read(io.BytesIO(content), f"picture {index} of {self._folder}", edge)

    def check(self) -> None:
        """Read all bytes, because damage does not show in decoded pixels.

        Raises DataError if they differ from what was packed.
        """
        digest = hashlib.sha256()
        for index, label in enumerate(self.labels):
            digest.update(self._content(index) + b"%d" % label)
        if digest.hexdigest() != self.fingerprint:
            raise DataError(f"{self._folder}: damaged (sha256 differs); pack the images again")

    def _content(self, index: int) -> bytes:
        entry = self._index[index]
        start = int(entry["offset"])
        return self._shards[entry["shard"]][start : start + int(entry["size"])].tobytes()


def open_pack(folder: Path) -> tuple[list[str], Packed, Packed]:
    """Return the classes, the training images and the test images of a pack. Raises DataError."""
    try:
        about = json.loads((folder / "pack.json").read_text())
        classes, digests = list(about["classes"]), dict(about["sha256"])
        train, val = (Packed(folder / n, str(digests[n]), len(classes)) for n in ("train", "val"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder}: {error}; pack the images again") from error
    return classes, train, val


def pack(
    classes: Sequence[str], splits: dict[str, Tree], to: Path, decoded: int, threads: int
) -> None:
    """Pack the pictures of `splits` into the new folder `to`.

    decoded: the greatest length of a picture's short side in pixels, or 0 to keep the files.
    Raises DataError if `to` exists or a picture cannot be decoded.
    """
    if to.exists():
        raise DataError(f"{to}: already exists; remove it, or pass another --to")
    part = to.with_name(f".{to.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    digests = {}
    for split, tree in splits.items():
        (part / split).mkdir(parents=True)
        with ThreadPoolExecutor(threads) as pool:
            digests[split] = _write_split(part / split, _items(tree, decoded, pool), tree.labels)
    about = {"v": 1, "decoded": decoded, "classes": list(classes), "sha256": digests}
    (part / "pack.json").write_text(json.dumps(about, indent=2) + "\n")
    part.rename(to)


def _items(tree: Tree, decoded: int, pool: ThreadPoolExecutor) -> Iterator[Item]:
    def item(index: int) -> Item:
        if not decoded:
            return tree.path(index).read_bytes(), 0, 0
        image = shrunk(tree.picture(index, decoded), decoded)
        return image.tobytes(), image.width, image.height

    for start in range(0, len(tree.labels), AT_ONCE):
        yield from pool.map(item, range(start, min(start + AT_ONCE, len(tree.labels))))


def _write_split(folder: Path, items: Iterator[Item], labels: np.ndarray[Any, Any]) -> str:
    """Write the shards and the index. Return the sha256 of all pictures with their labels."""
    index = np.zeros(len(labels), ENTRY)
    shard, file, digest = 0, _shard(folder, 0).open("wb"), hashlib.sha256()
    for row, (content, width, height) in enumerate(items):
        if file.tell() and file.tell() + len(content) > SHARD:
            file.close()
            shard += 1
            file = _shard(folder, shard).open("wb")
        index[row] = (shard, file.tell(), len(content), width, height, labels[row])
        file.write(content)
        digest.update(content + b"%d" % labels[row])
    file.close()
    np.save(folder / "index.npy", index)
    return digest.hexdigest()


def _shard(folder: Path, number: int) -> Path:
    return folder / f"{number:05}.bin"
