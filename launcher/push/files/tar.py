"""Write files as a tar stream in GNU format, which GNU tar, busybox and bsdtar can read.

Modes are 755 or 644; owners are omitted. A name may contain any byte except NUL.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence

from ...errors import PushFailed
from .manifest import Entry
from .scan import Tree, shown

CHUNK = 256 * 1024  # bytes
END = bytes(2 * tarfile.BLOCKSIZE)
_TYPES = {"d": tarfile.DIRTYPE, "l": tarfile.SYMTYPE, "f": tarfile.REGTYPE, "x": tarfile.REGTYPE}


def stream(tree: Tree, entries: Sequence[Entry], extra: Mapping[str, bytes]) -> Iterator[bytes]:
    """Yield the archive in chunks: `entries` of `tree`, then the files in `extra` by name.

    Raises PushFailed if a file no longer matches the manifest.
    """
    pending = bytearray()
    for entry in entries:
        pending += _header(tree, entry)
        if entry.size:
            for block in _read(tree, entry):
                pending += block
                if len(pending) >= CHUNK:
                    yield bytes(pending)
                    pending.clear()
            pending += padding(entry.size)
    for name, data in extra.items():
        pending += small_file(name, data)
    yield bytes(pending) + END


def small_file(name: str, data: bytes) -> bytes:
    return file_header(name, len(data)) + data + padding(len(data))


def file_header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return _encoded(info)


def padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)


def size_of(sizes: Sequence[int]) -> int:
    """Return the bytes of an archive of files with these sizes. Names over 100 bytes add a little."""
    blocks = sum(1 + -(-size // tarfile.BLOCKSIZE) for size in sizes)
    return blocks * tarfile.BLOCKSIZE + len(END)


def _header(tree: Tree, entry: Entry) -> bytes:
    info = tarfile.TarInfo(f"tree/{os.fsdecode(entry.path)}")
    info.type, info.size = _TYPES[entry.kind], entry.size
    info.mode = 0o755 if entry.kind in "dx" else 0o644
    stamp = tree.stamps.get(entry.path)
    info.mtime = max(stamp.mtime_ns // 10**9, 0) if stamp else 0
    if entry.kind == "l":
        info.linkname = os.fsdecode(entry.content)
    return _encoded(info)


def _encoded(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def _read(tree: Tree, entry: Entry) -> Iterator[bytes]:
    """Yield the file's bytes. Verifies the hash on the way, so the manifest stays true."""
    path = tree.path(entry)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise PushFailed(f"{shown(path)}: {error.strerror} during the push; push again") from None
    try:
        left, digest = entry.size, hashlib.sha256()
        while left:
            block = os.read(descriptor, min(left, CHUNK) + 1)  # one more byte: has it grown?
            if not 0 < len(block) <= left:
                raise _changed(path)
            digest.update(block)
            left -= len(block)
            yield block
        if digest.hexdigest().encode() != entry.content:
            raise _changed(path)
    finally:
        os.close(descriptor)


def _changed(path: bytes) -> PushFailed:
    return PushFailed(f"{shown(path)}: changed during the push; push again when it is complete")
