"""How each kind of value in a hosts file is read. A reader returns the value, or None after it has
said what is wrong; it never stops at the first of several faults."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Literal, TypeAlias

from .problems import Problems, nearest, shown
from .yaml import Sequence, Text, Tree

MAX_GPUS = 256
_INTERFACE = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.:@-]{0,14}")
# What ssh itself refuses in names, and what would be a pattern or a part of something else.
_NOT_IN_HOST = set("'`\"$\\;&<>|(){}[],*?!#/@=~^")
_NOT_IN_USER = set("'`\";&<>|(){}@:,/")


PathKind: TypeAlias = Literal["file", "env file", "folder"]


@dataclass(frozen=True)
class Place:
    """A path of this machine that the file names; whether it is there is for `load` to see."""

    line: int
    key: str
    path: str
    kind: PathKind


@dataclass
class Reading:
    """One reading of one source. base, home: what relative paths and `~` stand for."""

    problems: Problems
    base: str
    home: str
    places: list[Place] = field(default_factory=list)


@dataclass(frozen=True)
class At:
    """Where a value stands and what may stand there."""

    reading: Reading
    key: str
    allowed: str

    def wrong(self, line: int, found: str, remedy: str = "", near: str | None = None) -> None:
        self.reading.problems.add(
            line, self.key, f"found {found}", allowed=self.allowed, remedy=remedy, near=near
        )

    def inside(self, part: str) -> At:
        return At(self.reading, self.key + part, self.allowed)


Value: TypeAlias = (
    str | int | tuple[int, ...] | tuple[str, ...] | dict[str, str] | Literal["all", "auto"]
)
Reader: TypeAlias = Callable[[Tree, At], Value | None]


# Building blocks


def as_written(tree: Tree, at: At) -> str | None:
    """Any scalar, numbers and `yes` included, as the characters of the file."""
    if not isinstance(tree, Text):
        at.wrong(tree.line, tree.kind, "write one value")
    elif tree.is_null:
        at.wrong(tree.line, "nothing", 'give a value ("" for an empty one) or remove the key')
    elif "\0" in tree.text or any("\ud800" <= c <= "\udfff" for c in tree.text):
        at.wrong(tree.line, shown(tree.text), "no program can be given this character; remove it")
    else:
        return tree.text
    return None


def text(tree: Tree, at: At) -> str | None:
    """A scalar that YAML takes for text, and not an empty one."""
    written = as_written(tree, at)
    if written is None or not isinstance(tree, Text):
        return None
    if tree.kind != "text":
        at.wrong(
            tree.line, f"{shown(written)} ({tree.kind})", f'quote it if meant: "{shown(written)}"'
        )
    elif not written.strip():
        at.wrong(tree.line, "an empty text", "give a value or remove the key")
    else:
        return written
    return None


def one_word(tree: Tree, at: At, forbidden: set[str]) -> str | None:
    """Text that a command line may carry as a name: no space, no control, no leading dash."""
    word = text(tree, at)
    if word is None:
        return None
    bad = sorted({c for c in word if c in forbidden or c.isspace() or not c.isprintable()})
    if word.startswith("-"):
        at.wrong(tree.line, shown(word), "a name that starts with `-` would be an option to ssh")
    elif bad:
        at.wrong(tree.line, shown(word), f"remove {shown(' '.join(bad))}")
    elif len(word) > 253:
        at.wrong(tree.line, shown(word), "give at most 253 characters")
    else:
        return word
    return None


def whole(low: int, high: int, also: str | None = None) -> Reader:
    """A decimal number from `low` to `high`, or the word `also`."""

    def read(tree: Tree, at: At) -> Value | None:
        written = as_written(tree, at)
        if written is None or (also is not None and written == also):
            return written
        if not re.fullmatch(r"-?[0-9]{1,30}", written):
            near = nearest(written, [also]) if also else None
            at.wrong(tree.line, shown(written), "write a whole decimal number", near)
        elif re.fullmatch(r"-?0[0-9]+", written):
            plain = written.lstrip("-0") or "0"
            at.wrong(
                tree.line, shown(written), f"YAML reads a leading 0 as octal; write {shown(plain)}"
            )
        elif not low <= int(written) <= high:
            at.wrong(tree.line, shown(written), f"write a number from {low} to {high}")
        else:
            return int(written)
        return None

    return read


def choice(*words: str) -> Reader:
    def read(tree: Tree, at: At) -> Value | None:
        word = as_written(tree, at)
        if word is None or word in words:
            return word
        at.wrong(tree.line, shown(word), f"write {' or '.join(words)}", nearest(word, words))
        return None

    return read


# Hosts


def host(tree: Tree, at: At) -> str | None:
    word = text(tree, at)
    if word is None:
        return None
    if ":" in word and "@" not in word:
        if _is_address(word):
            return word
        name, _, port = word.rpartition(":")
        if port.isascii() and port.isdecimal() and name:
            bare = name.strip("[]")
            at.wrong(tree.line, shown(word), f"write host: {shown(bare)} and port: {shown(port)}")
        else:
            at.wrong(tree.line, shown(word), "a colon is only for IPv6 addresses")
        return None
    if word.count("@") == 1 and not word.startswith(("-", "@")):
        user, _, name = word.partition("@")
        at.wrong(tree.line, shown(word), f"write host: {shown(name)} and user: {shown(user)}")
        return None
    return one_word(tree, at, _NOT_IN_HOST | {":", "%"})


def user(tree: Tree, at: At) -> str | None:
    return one_word(tree, at, _NOT_IN_USER)


def proxy_jump(tree: Tree, at: At) -> str | None:
    """[user@]host[:port], several joined by commas, or `none`, as ssh -J takes it."""
    word = one_word(tree, at, _NOT_IN_HOST - set("@,[]/"))
    if word is None:
        return None
    for hop in word.split(","):
        name, port = split_port(hop.removeprefix("ssh://").rpartition("@")[2])
        if not name or name.startswith("-") or "/" in name:
            at.wrong(tree.line, shown(word), "write [user@]host[:port], joined by commas")
            return None
        if port is not None and not _is_port(port):
            at.wrong(tree.line, shown(word), "a port is a number from 1 to 65535")
            return None
    return word


def split_port(word: str) -> tuple[str, str | None]:
    """`host:port`, `[v6]:port`, `host` or a bare IPv6 address, taken apart."""
    bracketed = re.fullmatch(r"\[([^\[\]]*)\](?::(.*))?", word)
    if bracketed:
        return bracketed[1], bracketed[2]
    if word.count(":") == 1:
        name, _, port = word.partition(":")
        return name, port
    return word, None


def gpus(tree: Tree, at: At) -> Value | None:
    """all | a count | a list of ids."""
    if not isinstance(tree, Sequence):
        return _gpu_count(tree, at)
    if not tree.items:
        at.wrong(tree.line, "an empty list", "write gpus: 0 for a node without GPUs")
        return None
    read_id = whole(0, MAX_GPUS - 1)
    ids = [read_id(item, at.inside(f"[{i}]")) for i, item in enumerate(tree.items)]
    found = [i for i in ids if isinstance(i, int)]
    twice = sorted({i for i in found if found.count(i) > 1})
    if twice:
        at.wrong(tree.line, f"GPU {', '.join(map(str, twice))} twice", "name each GPU once")
        return None
    return tuple(found) if len(found) == len(ids) else None


def _gpu_count(tree: Tree, at: At) -> Value | None:
    if isinstance(tree, Text) and re.fullmatch(r"\s*\d+(\s*[,\s]\s*\d+)+\s*", tree.text):
        ids = ", ".join(re.findall(r"\d+", tree.text))
        at.wrong(tree.line, shown(tree.text), f"write gpus: [{shown(ids)}]")
        return None
    return whole(0, MAX_GPUS, also="all")(tree, at)


def internal_ip(tree: Tree, at: At) -> str | None:
    word = text(tree, at)
    if word is None:
        return None
    if not _is_address(word):
        at.wrong(tree.line, shown(word), "write the address itself, without a name, port or mask")
        return None
    address = ipaddress.ip_address(word)
    if address.is_unspecified or address.is_multicast:
        at.wrong(tree.line, shown(word), "write an address that the host itself carries")
        return None
    return word


def interface(tree: Tree, at: At) -> str | None:
    word = text(tree, at)
    if word is not None and not _INTERFACE.fullmatch(word):
        at.wrong(tree.line, shown(word), "write one name as `ip link` shows it")
        return None
    return word


def _is_address(word: str) -> bool:
    try:
        ipaddress.ip_address(word)
    except ValueError:
        return False
    return True


def _is_port(word: str) -> bool:
    return bool(re.fullmatch(r"[1-9][0-9]{0,4}", word)) and int(word) <= 65535


# Paths of this machine


def path_of(kind: PathKind) -> Reader:
    """An absolute path; whether it exists is noted for `load` to see."""

    def read(tree: Tree, at: At) -> Value | None:
        if isinstance(tree, Text) and tree.is_null and tree.text == "~":
            written: str | None = "~"  # YAML's null, but a home folder to whoever wrote it
        else:
            written = text(tree, at)
        if written is None:
            return None
        path = _absolute(written, at.reading)
        if path is None:
            at.wrong(tree.line, shown(written), "write the absolute path instead of ~NAME")
            return None
        if path == "/":
            at.wrong(tree.line, shown(written), "name a folder below the root of the disk")
            return None
        at.reading.places.append(Place(tree.line, at.key, path, kind))
        return path

    return read


def _absolute(written: str, reading: Reading) -> str | None:
    if written == "~" or written.startswith("~/"):
        return _normal(PurePosixPath(reading.home, written[2:]))
    if written.startswith("~") and "/" in written:
        return None
    return _normal(PurePosixPath(reading.base, written))


def _normal(path: PurePosixPath) -> str:
    """Without `.` and `..`; os.path.normpath keeps two leading slashes, which nobody means."""
    parts: list[str] = []
    for part in path.parts[1:]:
        if part == "..":
            parts = parts[:-1]
        else:
            parts.append(part)
    return "/" + "/".join(parts)
