"""Readers for each kind of value in a hosts file, and for the values of a host.

A reader takes a tree and returns the value. It raises Wrong with all problems of that value.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeAlias, TypeVar

from .problems import Problem, Wrong, nearest, shown
from .tree import LIST, MAPPING, NOTHING, TEXT, Tree

MAX_GPUS = 256
_NOT_IN_ARGUMENTS = re.compile("[\0\ud800-\udfff]")
# Characters that ssh itself refuses in names, or that have a meaning in patterns and lists.
_NOT_IN_HOST = set("'`\"$\\;&<>|(){}[],*?!#/@=~^")
_NOT_IN_USER = set("'`\";&<>|(){}@:,/")

P = TypeVar("P")
T = TypeVar("T")
Reader: TypeAlias = Callable[[Tree], object]


def wrong(tree: Tree, remedy: str, found: str = "", near: str | None = None) -> Wrong:
    """found: what is wrong in words, if not the value itself."""
    return Wrong(Problem(tree.line, "", f"found {found or tree.shown}", remedy, near=near))


def each(parts: Iterable[tuple[str, P]], read: Callable[[P], T]) -> list[T]:
    """Read every part under its key. Raises Wrong with the problems of all parts."""
    values, problems = [], []
    for key, part in parts:
        try:
            values.append(read(part))
        except Wrong as error:
            problems += [problem.within(key) for problem in error.problems]
    if problems:
        raise Wrong(*problems)
    return values


def list_of(read: Callable[[Tree], T], example: str) -> Callable[[Tree], tuple[T, ...]]:
    def read_list(tree: Tree) -> tuple[T, ...]:
        if tree.kind != LIST:
            raise wrong(tree, f"write a list: {example}")
        return tuple(each(((f"[{i}]", item) for i, item in enumerate(tree.items)), read))

    return read_list


def mapping_of(
    remedy_for: Callable[[str], str], read: Callable[[Tree], T], example: str
) -> Callable[[Tree], dict[str, T]]:
    """Return a reader of mappings. remedy_for: returns the remedy for a forbidden name, else ""."""

    def read_mapping(tree: Tree) -> dict[str, T]:
        if tree.kind != MAPPING:
            raise wrong(tree, f"write {example}")

        def read_entry(name: str) -> tuple[str, T]:
            if remedy := remedy_for(name):
                raise wrong(tree.entries[name], remedy, f"the name {shown(name)}")
            return name, read(tree.entries[name])

        return dict(each(((f".{shown(name)}", name) for name in tree.entries), read_entry))

    return read_mapping


def as_written(tree: Tree) -> str:
    """Read any scalar, including numbers and `yes`, as written in the file."""
    if tree.kind in (LIST, MAPPING):
        raise wrong(tree, "write one value")
    if tree.kind == NOTHING:
        raise wrong(tree, 'give a value ("" for an empty one) or remove the key')
    if _NOT_IN_ARGUMENTS.search(tree.text):
        raise wrong(tree, "remove the character: no program can receive it")
    return tree.text


def text(tree: Tree) -> str:
    """Read a non-empty scalar that YAML treats as text."""
    written = as_written(tree)
    if tree.kind != TEXT:
        remedy = f'quote it if you mean the text: "{shown(written)}"'
        raise wrong(tree, remedy, f"{shown(written)} ({tree.kind})")
    if not written.strip():
        raise wrong(tree, "give a value or remove the key")
    return written


def matching(pattern: str, remedy: str) -> Callable[[Tree], str]:
    """Return a reader of texts that match `pattern`."""

    def read_text(tree: Tree) -> str:
        if not re.fullmatch(pattern, text(tree), re.DOTALL):
            raise wrong(tree, remedy)
        return tree.text

    return read_text


def whole(low: int, high: int, also: str | None = None) -> Reader:
    """Return a reader of integers from `low` to `high`, or of the word `also`."""

    def read(tree: Tree) -> object:
        written = as_written(tree)
        if written == also:
            return written
        # YAML would read a leading 0 as octal.
        if re.fullmatch("0|-?[1-9][0-9]{0,29}", written) and low <= int(written) <= high:
            return int(written)
        near = nearest(written, [also] if also else [])
        raise wrong(tree, f"write a plain number from {low} to {high}", near=near)

    return read


def choice(*words: str) -> Reader:
    def read(tree: Tree) -> object:
        word = as_written(tree)
        if word not in words:
            raise wrong(tree, f"write {' or '.join(words)}", near=nearest(word, words))
        return word

    return read


def path(tree: Tree) -> str:
    """Read a path as written; the loader makes it absolute."""
    # YAML reads `~` as null, but the user means the home folder.
    return "~" if tree.kind == NOTHING and tree.text == "~" else text(tree)


# Hosts


def host(tree: Tree) -> str:
    word = text(tree)
    if is_address(word):  # IPv6: colons, and a zone after `%`
        return _one_word(tree, _NOT_IN_HOST)
    parts = split_login(word)
    if len(parts) > 1 and not word.startswith("-"):
        written = " and ".join(f"{key}: {shown(part)}" for key, part in parts.items())
        raise wrong(tree, f"write {written}")
    return _one_word(tree, _NOT_IN_HOST | {":", "%"})


def user(tree: Tree) -> str:
    return _one_word(tree, _NOT_IN_USER)


def _one_word(tree: Tree, forbidden: set[str]) -> str:
    """Read a name that is safe as an argument: no spaces, control characters or leading dash."""
    word = text(tree)
    bad = sorted({c for c in word if c in forbidden or c.isspace() or not c.isprintable()})
    if word.startswith("-"):
        raise wrong(tree, "ssh would read a name that starts with `-` as an option")
    if bad:
        raise wrong(tree, f"remove {shown(' '.join(bad))}")
    if len(word) > 253:
        raise wrong(tree, "use at most 253 characters")
    return word


def proxy_jump(tree: Tree) -> str:
    """Read [user@]host[:port], several separated by commas, or `none`, as for ssh -J."""
    word = _one_word(tree, _NOT_IN_HOST - set("@,[]/"))
    for hop in word.split(","):
        parts = split_login(hop.removeprefix("ssh://"))
        port = re.fullmatch("[1-9][0-9]{0,4}", parts.get("port", "22"))
        if not (re.fullmatch("[^-/][^/]*", parts["host"]) and port and int(port[0]) < 65536):
            raise wrong(tree, "write [user@]host[:port], separated by commas")
    return word


def split_login(word: str) -> dict[str, str]:
    """Split `[user@]host[:port]` into the values of the keys that it has."""
    user, at, rest = word.rpartition("@")
    name, port = split_port(rest)
    parts = {"host": name} | ({"user": user} if at else {})
    return parts if port is None else parts | {"port": port}


def split_port(word: str) -> tuple[str, str | None]:
    """Split `host:port`, `[v6]:port`, `host` or a bare IPv6 address."""
    if bracketed := re.fullmatch(r"\[([^\[\]]*)\](?::(.*))?", word):
        return bracketed[1], bracketed[2]
    name, colon, port = word.partition(":")
    return (name, port) if colon and ":" not in port else (word, None)


def gpus(tree: Tree) -> object:
    """Read `all`, a count, or a list of ids."""
    if tree.kind != LIST:
        return whole(0, MAX_GPUS, also="all")(tree)
    if not tree.items:
        raise wrong(tree, "for a CPU host write gpus: 0", "an empty list")
    ids = Counter(_ids(tree))
    if twice := [str(gpu) for gpu, count in ids.items() if count > 1]:
        raise wrong(tree, "name each GPU once", f"GPU {', '.join(twice)} twice")
    return tuple(ids)


_ids = list_of(whole(0, MAX_GPUS - 1), "[0, 1]")


def internal_ip(tree: Tree) -> str:
    word = text(tree)
    if not is_address(word):
        raise wrong(tree, "write an address without a name, port or mask")
    address = ipaddress.ip_address(word)
    if address.is_unspecified or address.is_multicast:
        raise wrong(tree, "write an address of one of the host's own interfaces")
    return word


interface = matching(r"[A-Za-z0-9_.][A-Za-z0-9_.:@-]{0,14}", "use one name from `ip link`")


def is_address(word: str) -> bool:
    try:
        ipaddress.ip_address(word)
    except ValueError:
        return False
    return True
