"""Entries of a tree as a tar stream: GNU format, which GNU tar, busybox and bsdtar all read.

Python's own tarfile is three times slower with small files. A name may be any bytes but NUL.
Modes are made plain (folders 755, files 644 or 755) and owners left out: the reader's own count.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from launcher.errors import PushFailed
from launcher.push.files.manifest import Entry
from launcher.push.files.scan import Tree, shown

BLOCK = 512
CHUNK = 256 * 1024  # bytes handed on at once
END = bytes(2 * BLOCK)
NOTHING: Mapping[bytes, bytes] = MappingProxyType({})

_TYPES = {"d": b"5", "l": b"2", "f": b"0", "x": b"0"}
_MODES = {"d": b"0000755", "l": b"0000777", "f": b"0000644", "x": b"0000755"}


def size(
    entries: Sequence[Entry], *, prefix: bytes = b"", extra: Mapping[bytes, bytes] = NOTHING
) -> int:
    """Bytes that `stream` of these entries has."""
    total = len(END)
    for entry in entries:
        total += _header_size(entry, prefix) + _padded(entry.size)
    return total + plain_size([len(data) for data in extra.values()]) - len(END)


def stream(
    tree: Tree,
    entries: Sequence[Entry],
    *,
    prefix: bytes = b"",
    extra: Mapping[bytes, bytes] = NOTHING,
) -> Iterator[bytes]:
    """The archive, in chunks: entries below `prefix`, then the files of `extra` as they are.

    PushFailed when a file is no longer what the manifest says.
    """
    pending = bytearray()
    for entry in entries:
        pending += header(entry, _mtime(tree, entry), prefix)
        if entry.is_file and entry.size:
            for block in _read(tree, entry):
                pending += block
                if len(pending) >= CHUNK:
                    yield bytes(pending)
                    pending.clear()
            pending += bytes(_padded(entry.size) - entry.size)
    for name, data in extra.items():
        pending += member(name, data)
    yield bytes(pending) + END


def member(name: bytes, data: bytes) -> bytes:
    """A small file that is not of a tree."""
    return plain_header(name, len(data)) + data + padding(len(data))


def plain_header(name: bytes, size: int) -> bytes:
    return _block(name, b"0", b"0000644", size, 0, b"")


def padding(size: int) -> bytes:
    return bytes(_padded(size) - size)


def plain_size(sizes: Sequence[int]) -> int:
    """Bytes of an archive of members of these sizes."""
    return len(END) + sum(BLOCK + _padded(size) for size in sizes)


def _header_size(entry: Entry, prefix: bytes) -> int:
    name = len(prefix) + len(entry.path) + (entry.kind == "d")
    link = len(entry.content) if entry.kind == "l" else 0
    return BLOCK + sum(BLOCK + _padded(text + 1) for text in (name, link) if text > 100)


def header(entry: Entry, mtime: int, prefix: bytes = b"") -> bytes:
    """One or more 512-byte blocks."""
    name = prefix + entry.path + b"/" if entry.kind == "d" else prefix + entry.path
    link = entry.content if entry.kind == "l" else b""
    blocks = b""
    if len(link) > 100:
        blocks += _long(b"K", link)
    if len(name) > 100:
        blocks += _long(b"L", name)
    return blocks + _block(name, _TYPES[entry.kind], _MODES[entry.kind], entry.size, mtime, link)


def _long(kind: bytes, text: bytes) -> bytes:
    data = text + b"\0"
    block = _block(b"././@LongLink", kind, b"0000644", len(data), 0, b"")
    return block + data.ljust(_padded(len(data)), b"\0")


def _block(name: bytes, kind: bytes, mode: bytes, size: int, mtime: int, link: bytes) -> bytes:
    if size < 8 << 30:
        digits = b"%011o\0" % size
    else:  # base 256, as GNU has it
        digits = b"\x80" + size.to_bytes(11, "big")
    block = b"%-100b%s\0%s\0%s\0%s%011o\0        %s%-100bustar  \0" % (
        name[:100].ljust(100, b"\0"),
        mode,
        b"0000000",
        b"0000000",
        digits,
        mtime,
        kind,
        link[:100].ljust(100, b"\0"),
    )
    return b"%s%06o\0 %s" % (block[:148], sum(block), block[156:].ljust(BLOCK - 156, b"\0"))


def _mtime(tree: Tree, entry: Entry) -> int:
    stamp = tree.stamps.get(entry.path)
    return max(stamp[2] // 10**9, 0) if stamp else 0


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _read(tree: Tree, entry: Entry) -> Iterator[bytes]:
    """The file's bytes. They are hashed again on the way: what was promised is what is sent."""
    path = tree.path(entry)
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise PushFailed(
            f"{shown(path)}: {error.strerror} while it was pushed; push again"
        ) from None
    try:
        left, digest = entry.size, hashlib.sha256()
        while left:
            block = os.read(number, min(left, CHUNK) + 1)  # one more: has it grown?
            if not 0 < len(block) <= left:
                raise _changed(path)
            digest.update(block)
            left -= len(block)
            yield block
        if digest.hexdigest().encode() != entry.content:
            raise _changed(path)
    finally:
        os.close(number)


def _changed(path: bytes) -> PushFailed:
    return PushFailed(f"{shown(path)}: changed while it was pushed; push again when it is complete")
