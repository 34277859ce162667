"""Readers for the values of a hosts file: building blocks, then keys of a host, then of the job.

A reader takes a tree and returns the value. It raises Wrong with all problems of that value.
"""

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import PurePosixPath
from typing import TypeAlias, TypeVar

from ..text import bytes_in, duration_remedy, quoted, seconds_in
from .problems import Problem, Wrong, nearest
from .yaml_tree import LIST, MAPPING, NOTHING, TEXT, Tree

MIB = 1024**2
LONGEST_DURATION = 365 * 86400  # seconds
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STARTS_PYTHON = re.compile(r"python[0-9.]*|torchrun")
_UID_GID = re.compile(r"\d{1,10}:\d{1,10}", re.ASCII)
_LIMITS = ("core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile") + (
    ("nproc", "rss", "rtprio", "rttime", "sigpending", "stack")
)
# The grammar of github.com/distribution/reference as one regular expression.
_IMAGE = (
    r"(?!.{401})(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::\d+)?/)?"
    r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_FOLDER = r"(?!.*/\.\.(?:[/:]|$))/[^:]*"  # absolute, without `..`
SET_BY_DDPCTL = frozenset(
    {
        *("DDPCTL_RUN_ID", "DDPCTL_ATTEMPT", "DDPCTL_NODE_RANK", "DDPCTL_NNODES"),
        *("DDPCTL_CHECKPOINT_DIR", "DDPCTL_OUTPUT_DIR", "DDPCTL_RESUME"),
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT"),
    }
)
MAX_GPUS = 256
_NOT_IN_ARGUMENTS = re.compile("[\0\ud800-\udfff]")
# Characters that ssh itself refuses in names, or that have a special meaning in patterns and lists.
_NOT_IN_HOST = set("'`\"$\\;&<>|(){}[],*?!#/@=~^")
_NOT_IN_USER = set("'`\";&<>|(){}@:,/")

P = TypeVar("P")
T = TypeVar("T")
Reader: TypeAlias = Callable[[Tree], object]


def wrong(tree: Tree, remedy: str, found: str = "", near: str | None = None) -> Wrong:
    """Return the error for a value. found: what is wrong, in words; default: the value itself."""
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
                raise wrong(tree.entries[name], remedy, f"the name {quoted(name)}")
            return name, read(tree.entries[name])

        return dict(each(((f".{quoted(name)}", name) for name in tree.entries), read_entry))

    return read_mapping


def as_written(tree: Tree) -> str:
    """Read any scalar, including numbers and `yes`, as written in the file."""
    if tree.kind in (LIST, MAPPING):
        raise wrong(tree, "write one value")
    if tree.kind == NOTHING:
        raise wrong(tree, 'give a value ("" for an empty one) or remove the key')
    if _NOT_IN_ARGUMENTS.search(tree.text):
        raise wrong(tree, "remove the character: it cannot be passed to a program")
    return tree.text


def text(tree: Tree) -> str:
    """Read a non-empty scalar that YAML treats as text."""
    written = as_written(tree)
    if tree.kind != TEXT:
        remedy = f'quote it if you mean the text: "{quoted(written)}"'
        raise wrong(tree, remedy, f"{quoted(written)} ({tree.kind})")
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


# A host


def host(tree: Tree) -> str:
    word = text(tree)
    if is_address(word):  # IPv6 has colons, and may have a zone after `%`
        return _one_word(tree, _NOT_IN_HOST)
    parts = split_login(word)
    is_login = len(parts) > 1 and all(parts.values()) and parts.get("port", "0").isdecimal()
    if is_login and not word.startswith("-"):
        written = " and ".join(f"{key}: {quoted(part)}" for key, part in parts.items())
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
        raise wrong(tree, f"remove {quoted(' '.join(bad))}")
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
    """Split `[user@]host[:port]` into `host` and, if given, `user` and `port`."""
    user, at, rest = word.rpartition("@")
    name, port = split_port(rest)
    parts = {"host": name} | ({"user": user} if at else {})
    return parts if port is None else parts | {"port": port}


def split_port(word: str) -> tuple[str, str | None]:
    """Split `host:port`, `[v6]:port`, `host` or a bare IPv6 address. The port may be None."""
    if bracketed := re.fullmatch(r"\[([^\[\]]*)\](?::(.*))?", word):
        return bracketed[1], bracketed[2]
    name, colon, port = word.partition(":")
    return (name, port) if colon and ":" not in port else (word, None)


def gpus(tree: Tree) -> object:
    """Read `all`, a count, or a list of ids."""
    if tree.kind != LIST:
        if "," in tree.text:
            raise wrong(tree, "write a list of ids in brackets: [0, 1]")
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
    address = ipaddress.ip_address(word) if is_address(word) else None
    if address is None or address.is_unspecified or address.is_multicast:
        remedy = "write an address of one of the host's own interfaces, without a port or mask"
        raise wrong(tree, remedy)
    return word


interface = matching(
    r"[A-Za-z0-9_.][A-Za-z0-9_.:@-]{0,14}", "use one of the names that `ip link` shows"
)


def is_address(word: str) -> bool:
    try:
        ipaddress.ip_address(word)
    except ValueError:
        return False
    return True


# The job


def command(tree: Tree) -> tuple[str, ...]:
    words = arguments(tree)
    if not words or not words[0]:
        raise wrong(tree, "write [train.py] or [-m, trainer], for example", "nothing to run")
    first = PurePosixPath(words[0]).name
    if _STARTS_PYTHON.fullmatch(first):
        raise wrong(
            tree, f"remove {quoted(first)}: ddpctl runs the script with torchrun", quoted(words[0])
        )
    return words


def arguments(tree: Tree) -> tuple[str, ...]:
    """Read a list of arguments. Numbers and `yes` stay as written."""
    if tree.kind == TEXT and (words := tree.text.split()):
        listed = ", ".join(word for word in words if not _STARTS_PYTHON.fullmatch(word))
        raise wrong(tree, f"write [{quoted(listed)}]")
    return list_of(as_written, "[--epochs, 10]")(tree)


def wrong_env_name(name: str) -> str:
    """Return the remedy if the job's environment may not set `name`, else ""."""
    if not _ENV_NAME.fullmatch(name):
        return "use letters, digits and _"
    return "remove it: ddpctl or torchrun sets it on each node" if name in SET_BY_DDPCTL else ""


def _wrong_limit(name: str) -> str:
    return "" if name in _LIMITS else f"write {nearest(name, _LIMITS) or ', '.join(_LIMITS)}"


def _wrong_folder(name: str) -> str:
    return "" if re.fullmatch(_FOLDER, name, re.DOTALL) else "write an absolute path"


def _capability(tree: Tree) -> str:
    name = text(tree).upper().removeprefix("CAP_")
    if not re.fullmatch(r"[A-Z_]{2,40}", name):
        raise wrong(tree, "use a name from `man 7 capabilities`")
    return name


def duration(tree: Tree) -> int:
    """Read a duration in seconds: `90s`, `2h30m`, `1d` or `24:00:00`."""
    written = as_written(tree)
    seconds = seconds_in(written)
    if seconds is None:
        raise wrong(tree, duration_remedy(written))
    if not 0 < seconds <= LONGEST_DURATION:
        raise wrong(tree, "write a time from 1s to 365d")
    return seconds


def size(tree: Tree) -> int:
    """Read a size in bytes: `16g`, `512m`, `16GiB` or a number."""
    number = bytes_in(as_written(tree))
    if number is None or not MIB <= number <= 2**50:
        raise wrong(tree, "write a size from 1m to 1024t")
    return number


def container_user(tree: Tree) -> str:
    word = as_written(tree)  # not `text`: YAML reads 1000:1000 as a number in base 60
    names = ("host", "root")
    is_uid_gid = _UID_GID.fullmatch(word) and all(int(n) < 2**32 - 1 for n in word.split(":"))
    if word not in names and not is_uid_gid:
        raise wrong(tree, "write user: 1000:1000, for example", near=nearest(word, names))
    return word


_device = matching(
    r"(?!.*\.\.)/dev/[^\s:]+(:/[^\s:]+)?(:[rwm]{1,3})?", "write /dev/fuse, for example"
)
_mount = matching(
    rf"{_FOLDER}:/[^:]*(:r[ow])?",
    "write /FOLDER/ON/THE/HOSTS:/FOLDER/IN/THE/CONTAINER[:ro], without `..`",
)
cap_add = list_of(_capability, "[SYS_PTRACE]")
devices = list_of(_device, "[/dev/fuse]")
env = mapping_of(wrong_env_name, as_written, "NAME: value")  # {B: yes} gives "yes"
folder_on_hosts = matching(_FOLDER, "write the absolute path of a folder on the hosts")
image = matching(_IMAGE, "write it as `docker images` shows it, in lower case")
mounts = list_of(_mount, '["/scratch:/scratch:ro"]')
tmpfs = mapping_of(_wrong_folder, size, "{/scratch: 64g}")
ulimits = mapping_of(_wrong_limit, whole(-1, 2**62), "{nofile: 65536}")
