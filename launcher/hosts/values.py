"""Readers for each kind of value in a hosts file.

A reader takes a tree and returns the value. It raises Wrong with all problems of that value.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeAlias, TypeVar

from .problems import Problem, Wrong, nearest, shown
from .tree import Items, Scalar, Table, Tree

MAX_GPUS = 256
_NOT_IN_ARGUMENTS = re.compile("[\0\ud800-\udfff]")
# Characters that ssh itself refuses in names, or that have a meaning in patterns and lists.
_NOT_IN_HOST = set("'`\"$\\;&<>|(){}[],*?!#/@=~^")
_NOT_IN_USER = set("'`\";&<>|(){}@:,/")

P = TypeVar("P")
T = TypeVar("T")
Reader: TypeAlias = Callable[[Tree], object]


def wrong(tree: Tree, found: str, remedy: str = "", near: str | None = None) -> Wrong:
    return Wrong(Problem(tree.line, "", f"found {found}", remedy, near=near))


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


def parts(tree: Items) -> Iterable[tuple[str, Tree]]:
    return ((f"[{i}]", item) for i, item in enumerate(tree.items))


def list_of(read: Callable[[Tree], T], example: str) -> Callable[[Tree], tuple[T, ...]]:
    def read_list(tree: Tree) -> tuple[T, ...]:
        if not isinstance(tree, Items):
            raise wrong(tree, tree.kind, f"write a list: {example}")
        return tuple(each(parts(tree), read))

    return read_list


def mapping_of(
    remedy_for: Callable[[str], str], read: Callable[[Tree], T], example: str
) -> Callable[[Tree], dict[str, T]]:
    """Return a reader of mappings. remedy_for: returns the remedy for a forbidden name, else ""."""

    def read_mapping(tree: Tree) -> dict[str, T]:
        if not isinstance(tree, Table):
            raise wrong(tree, tree.kind, f"write {example}")

        def read_entry(name: str) -> tuple[str, T]:
            if remedy := remedy_for(name):
                raise Wrong(Problem(tree.lines[name], "", f"found the name {shown(name)}", remedy))
            return name, read(tree.entries[name])

        return dict(each(((f".{shown(name)}", name) for name in tree.entries), read_entry))

    return read_mapping


def as_written(tree: Tree) -> str:
    """Read any scalar, including numbers and `yes`, as written in the file."""
    if not isinstance(tree, Scalar):
        raise wrong(tree, tree.kind, "write one value")
    if tree.is_null:
        raise wrong(tree, "nothing", 'give a value ("" for an empty one) or remove the key')
    if _NOT_IN_ARGUMENTS.search(tree.text):
        raise wrong(tree, shown(tree.text), "remove the character: no program can receive it")
    return tree.text


def text(tree: Tree) -> str:
    """Read a non-empty scalar that YAML treats as text."""
    written = as_written(tree)
    if tree.kind != "text":
        remedy = f'quote it if you mean the text: "{shown(written)}"'
        raise wrong(tree, f"{shown(written)} ({tree.kind})", remedy)
    if not written.strip():
        raise wrong(tree, "an empty text", "give a value or remove the key")
    return written


def matching(pattern: str, remedy: str) -> Callable[[Tree], str]:
    """Return a reader of texts that match `pattern`."""

    def read_text(tree: Tree) -> str:
        word = text(tree)
        if not re.fullmatch(pattern, word):
            raise wrong(tree, shown(word), remedy)
        return word

    return read_text


def whole(low: int, high: int, also: str | None = None, remedy: str = "") -> Reader:
    """Return a reader of integers from `low` to `high`, or of the word `also`."""

    def read(tree: Tree) -> object:
        written = as_written(tree)
        if written == also:
            return written
        if not re.fullmatch(r"-?[0-9]{1,30}", written):
            near = nearest(written, [also]) if also else None
            raise wrong(tree, shown(written), remedy or "write a whole number", near)
        if re.fullmatch(r"-?0[0-9]+", written):
            plain = written.lstrip("-0") or "0"
            raise wrong(
                tree, shown(written), f"YAML reads a leading 0 as octal; write {shown(plain)}"
            )
        if not low <= int(written) <= high:
            raise wrong(tree, shown(written), f"write a number from {low} to {high}")
        return int(written)

    return read


def choice(*words: str) -> Reader:
    def read(tree: Tree) -> object:
        word = as_written(tree)
        if word not in words:
            raise wrong(tree, shown(word), f"write {' or '.join(words)}", nearest(word, words))
        return word

    return read


def path(tree: Tree) -> str:
    """Read a path as written; the loader makes it absolute."""
    if isinstance(tree, Scalar) and tree.is_null and tree.text == "~":
        return "~"  # YAML reads `~` as null, but the user means the home folder
    written = text(tree)
    if written.startswith("~") and not written.startswith("~/") and "/" in written:
        raise wrong(tree, shown(written), "write the absolute path instead of ~NAME")
    return written


# Hosts


def host(tree: Tree) -> str:
    word = text(tree)
    if ":" in word and "@" not in word:
        if is_address(word):
            return word
        name, _, port = word.rpartition(":")
        if port.isascii() and port.isdecimal() and name:
            bare = name.strip("[]")
            raise wrong(tree, shown(word), f"write host: {shown(bare)} and port: {shown(port)}")
        raise wrong(tree, shown(word), "only an IPv6 address may contain colons")
    if word.count("@") == 1 and not word.startswith(("-", "@")):
        login, _, name = word.partition("@")
        raise wrong(tree, shown(word), f"write host: {shown(name)} and user: {shown(login)}")
    return _one_word(tree, _NOT_IN_HOST | {":", "%"})


def user(tree: Tree) -> str:
    return _one_word(tree, _NOT_IN_USER)


def _one_word(tree: Tree, forbidden: set[str]) -> str:
    """Read a name that is safe as an argument: no spaces, control characters or leading dash."""
    word = text(tree)
    bad = sorted({c for c in word if c in forbidden or c.isspace() or not c.isprintable()})
    if word.startswith("-"):
        raise wrong(tree, shown(word), "ssh would read a name that starts with `-` as an option")
    if bad:
        raise wrong(tree, shown(word), f"remove {shown(' '.join(bad))}")
    if len(word) > 253:
        raise wrong(tree, shown(word), "use at most 253 characters")
    return word


def proxy_jump(tree: Tree) -> str:
    """Read [user@]host[:port], several separated by commas, or `none`, as for ssh -J."""
    word = _one_word(tree, _NOT_IN_HOST - set("@,[]/"))
    for hop in word.split(","):
        name, port = split_port(hop.removeprefix("ssh://").rpartition("@")[2])
        if not name or name.startswith("-") or "/" in name:
            raise wrong(tree, shown(word), "write [user@]host[:port], separated by commas")
        if port is not None and not (re.fullmatch(r"[1-9][0-9]{0,4}", port) and int(port) < 65536):
            raise wrong(tree, shown(word), "a port is a number from 1 to 65535")
    return word


def split_port(word: str) -> tuple[str, str | None]:
    """Split `host:port`, `[v6]:port`, `host` or a bare IPv6 address."""
    bracketed = re.fullmatch(r"\[([^\[\]]*)\](?::(.*))?", word)
    if bracketed:
        return bracketed[1], bracketed[2]
    if word.count(":") == 1:
        name, _, port = word.partition(":")
        return name, port
    return word, None


def gpus(tree: Tree) -> object:
    """Read `all`, a count, or a list of ids."""
    if not isinstance(tree, Items):
        if isinstance(tree, Scalar) and re.fullmatch(r"\s*\d+(\s*[,\s]\s*\d+)+\s*", tree.text):
            ids = ", ".join(re.findall(r"\d+", tree.text))
            raise wrong(tree, shown(tree.text), f"write gpus: [{shown(ids)}]")
        return whole(0, MAX_GPUS, also="all", remedy="for a CPU host write 0")(tree)
    if not tree.items:
        raise wrong(tree, "an empty list", "for a CPU host write gpus: 0")
    found = [i for i in each(parts(tree), whole(0, MAX_GPUS - 1)) if isinstance(i, int)]
    if twice := sorted(i for i, count in Counter(found).items() if count > 1):
        raise wrong(tree, f"GPU {', '.join(map(str, twice))} twice", "name each GPU once")
    return tuple(found)


def internal_ip(tree: Tree) -> str:
    word = text(tree)
    if not is_address(word):
        raise wrong(tree, shown(word), "write an address without a name, port or mask")
    address = ipaddress.ip_address(word)
    if address.is_unspecified or address.is_multicast:
        raise wrong(tree, shown(word), "write an address of one of the host's own interfaces")
    return word


interface = matching(r"[A-Za-z0-9_.][A-Za-z0-9_.:@-]{0,14}", "use one name from `ip link`")


def is_address(word: str) -> bool:
    try:
        ipaddress.ip_address(word)
    except ValueError:
        return False
    return True
