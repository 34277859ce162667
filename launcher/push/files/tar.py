"""Write files as a tar stream in GNU format, which GNU tar, busybox and bsdtar can read.

Modes are 755 or 644; owners are omitted. A name may contain any byte except NUL.
"""

import hashlib
import os
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from tarfile import TarInfo

from ...errors import PushFailed
from .manifest import Entry
from .open_file import open_file
from .scan import Tree, path_text

CHUNK = 256 * 1024  # bytes
END = bytes(2 * tarfile.BLOCKSIZE)
_TYPES = {"d": tarfile.DIRTYPE, "l": tarfile.SYMTYPE, "f": tarfile.REGTYPE, "x": tarfile.REGTYPE}

Member = tuple[TarInfo, Iterable[bytes]]


def stream(tree: Tree, entries: Sequence[Entry], extra: Mapping[str, bytes]) -> Iterator[bytes]:
    """Yield the archive in chunks: `entries` of `tree`, then `extra`, which maps names to contents.

    Raises PushFailed if a file no longer matches the manifest.
    """
    files = ((_info(tree, entry), _read(tree, entry) if entry.size else ()) for entry in entries)
    return archive(chain(files, (small_file(name, data) for name, data in extra.items())))


def archive(members: Iterable[Member]) -> Iterator[bytes]:
    pending = bytearray()
    for info, blocks in members:
        pending += info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
        for block in blocks:
            pending += block
            if len(pending) >= CHUNK:
                yield bytes(pending)
                pending.clear()
        pending += bytes(-info.size % tarfile.BLOCKSIZE)
    yield bytes(pending) + END


def small_file(name: str, data: bytes, mode: int = 0o644) -> Member:
    return file_info(name, len(data), mode), [data]


def file_info(name: str, size: int, mode: int = 0o644) -> TarInfo:
    info = TarInfo(name)
    info.size, info.mode = size, mode
    return info


def size_of(sizes: Sequence[int]) -> int:
    """Return an archive's size in bytes, given its files' sizes. Long names add a few bytes."""
    blocks = sum(1 + -(-size // tarfile.BLOCKSIZE) for size in sizes)
    return blocks * tarfile.BLOCKSIZE + len(END)


def _info(tree: Tree, entry: Entry) -> TarInfo:
    mode = 0o755 if entry.kind in "dx" else 0o644
    info = file_info(f"tree/{os.fsdecode(entry.path)}", entry.size, mode)
    info.type = _TYPES[entry.kind]
    stamp = tree.stamps.get(entry.path)
    info.mtime = max(stamp.mtime_ns // 10**9, 0) if stamp else 0
    info.linkname = os.fsdecode(entry.content) if entry.kind == "l" else ""
    return info


def _read(tree: Tree, entry: Entry) -> Iterator[bytes]:
    """Yield the file's bytes. Raises PushFailed if they do not match the manifest."""
    path = tree.path(entry)
    left, digest = entry.size, hashlib.sha256()
    extra = 0 if tree.code_only else 1  # a byte that shows whether the file has grown
    try:
        with open_file(path) as file:
            while left:
                block = file.read(min(left, CHUNK) + extra)
                if not 0 < len(block) <= left:
                    break
                digest.update(block)
                left -= len(block)
                yield block
    except OSError as error:
        raise PushFailed(
            f"{path_text(path)}: {error.strerror} during the push", "push again"
        ) from None
    if left or digest.hexdigest().encode() != entry.content:
        raise PushFailed(
            f"{path_text(path)}: changed during the push",
            "push again when nothing writes to it",
        )
