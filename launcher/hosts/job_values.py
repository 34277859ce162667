"""Readers for the values under `job:`, made of the building blocks in values.py."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from .problems import nearest, shown
from .tree import Items, Scalar, Tree
from .values import as_written, each, list_of, mapping_of, matching, parts, text, whole, wrong

MIB = 1024**2
LONGEST_DURATION = 365 * 86400  # seconds
_DURATION = re.compile(
    r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?|(\d{1,9})", re.ASCII
)
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)i?b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STARTS_PYTHON = re.compile(r"python[0-9.]*|torchrun")
_UID_GID = re.compile(r"\d{1,10}:\d{1,10}")
_LIMITS = ("core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile") + (
    ("nproc", "rss", "rtprio", "rttime", "sigpending", "stack")
)
# The reference grammar of github.com/distribution/reference as one expression.
_IMAGE = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::\d+)?/)?"
    r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
SET_BY_DDPCTL = frozenset(
    {
        *("DDPCTL_RUN_ID", "DDPCTL_ATTEMPT", "DDPCTL_NODE_RANK", "DDPCTL_NNODES"),
        *("DDPCTL_CHECKPOINT_DIR", "DDPCTL_OUTPUT_DIR", "DDPCTL_RESUME"),
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT"),
    }
)
OWN_MOUNTS = ("/checkpoints", "/output", "/ddpctl", "/ddpctl-metrics")


def image(tree: Tree) -> str:
    word = text(tree)
    if not _IMAGE.fullmatch(word) or len(word) > 400:
        upper = _IMAGE.fullmatch(word.partition("@")[0].lower())
        remedy = "use lower case" if upper else "write it as `docker images` shows it"
        raise wrong(tree, shown(word), remedy)
    return word


def command(tree: Tree) -> tuple[str, ...]:
    words = arguments(tree)
    if not words or not words[0]:
        raise wrong(tree, "nothing to run", "write [train.py] or [-m, trainer], for example")
    first = PurePosixPath(words[0]).name
    if _STARTS_PYTHON.fullmatch(first):
        raise wrong(tree, shown(words[0]), f"remove {shown(first)}: torchrun starts Python")
    return words


def arguments(tree: Tree) -> tuple[str, ...]:
    """Read a list of arguments. Numbers and `yes` stay as written."""
    if isinstance(tree, Items):
        return tuple(each(parts(tree), as_written))
    found, remedy = tree.kind, "write a list"
    if isinstance(tree, Scalar) and tree.text:
        found = shown(tree.text)
        words = [word for word in tree.text.split() if not _STARTS_PYTHON.fullmatch(word)]
        remedy = f"write [{shown(', '.join(words))}]" if tree.text.split() else remedy
    raise wrong(tree, found, remedy)


def wrong_env_name(name: str) -> str:
    """Return the remedy if an environment may not set `name`, else ""."""
    if not _ENV_NAME.fullmatch(name):
        return "use letters, digits and _"
    return "remove it: ddpctl or torchrun sets it on each node" if name in SET_BY_DDPCTL else ""


env = mapping_of(wrong_env_name, as_written, "NAME: value")  # {B: yes} gives "yes"


def mounts(tree: Tree) -> tuple[str, ...]:
    found = list_of(_mount, '["/scratch:/scratch:ro"]')(tree)
    taken: set[str] = set()
    items = tree.items if isinstance(tree, Items) else ()
    for item, mount in zip(items, found, strict=True):
        target = mount.split(":")[1].rstrip("/")
        if target in taken:
            raise wrong(item, f"two mounts at {shown(target)}", "keep one of them")
        taken.add(target)
    return found


def _mount(tree: Tree) -> str:
    word = text(tree)
    source, target, mode = [*word.split(":"), "", "", ""][:3]
    if word.count(":") not in (1, 2) or not source or not target:
        remedy = "write FOLDER_ON_THE_HOST:FOLDER_IN_THE_CONTAINER[:ro]"
    elif not source.startswith("/") or not target.startswith("/"):
        remedy = "write two absolute paths, the first of a folder on the hosts"
    elif word.count(":") == 2 and mode not in ("ro", "rw"):
        remedy = f"write ro or rw instead of {shown(mode)}"
    elif ".." in PurePosixPath(source).parts or ".." in PurePosixPath(target).parts:
        remedy = "write the paths without `..`"
    elif _is_own(target):
        remedy = f"choose another target: ddpctl itself uses {shown(target)} in the container"
    else:
        return word
    raise wrong(tree, shown(word), remedy)


def _is_own(target: str) -> bool:
    flat = target.rstrip("/")
    return not flat or any(flat == own or flat.startswith(own + "/") for own in OWN_MOUNTS)


def folder_on_hosts(tree: Tree) -> str:
    word = text(tree)
    if not word.startswith("/") or ".." in PurePosixPath(word).parts or ":" in word:
        raise wrong(tree, shown(word), "write the absolute path of a folder on the hosts")
    return word


def _capability(tree: Tree) -> str:
    name = text(tree).upper().removeprefix("CAP_")
    if not re.fullmatch(r"[A-Z_]{2,40}", name):
        raise wrong(tree, shown(name), "use a name from `man 7 capabilities`")
    return name


def _wrong_limit(name: str) -> str:
    near = nearest(name, _LIMITS)
    return "" if name in _LIMITS else f"write {near}" if near else f"write {', '.join(_LIMITS)}"


def _wrong_tmpfs(target: str) -> str:
    if not target.startswith("/") or ".." in PurePosixPath(target).parts or ":" in target:
        return "write an absolute path"
    return f"choose another: ddpctl itself uses {shown(target)}" if _is_own(target) else ""


def duration(tree: Tree) -> int:
    """Read a duration in seconds: `2h30m`, `90s`, `1d` or a number."""
    written = as_written(tree)
    total = seconds_in(written)
    if total is None:
        raise wrong(tree, shown(written), "write 2h30m, for example, or a number of seconds")
    if not 0 < total <= LONGEST_DURATION:
        raise wrong(tree, shown(written), "write a time from 1s to 365d")
    return total


def seconds_in(text: str) -> int | None:
    """Parse a duration into seconds; None if `text` is not one."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or not match[0]:
        return None
    days, hours, minutes, seconds, plain = (int(part or 0) for part in match.groups())
    return 86400 * days + 3600 * hours + 60 * minutes + seconds + plain


def size(tree: Tree) -> int:
    """Read a size in bytes: `16g`, `512m`, `16GiB` or a number."""
    written = as_written(tree)
    match = _SIZE.fullmatch(written.strip())
    if match is None:
        raise wrong(tree, shown(written), "write 16g or 512m, for example")
    number = int(match[1][:30]) * _UNITS[match[2].lower()]
    if number < MIB:
        raise wrong(tree, shown(written), f"that is less than 1 MiB; write {match[1][:5]}g?")
    if number > 2**50:
        raise wrong(tree, shown(written), "write a realistic size")
    return number


_device = matching(
    r"(?!.*\.\.)/dev/[^\s:]+(:/[^\s:]+)?(:[rwm]{1,3})?", "write /dev/fuse, for example"
)
devices = list_of(_device, "[/dev/fuse]")
cap_add = list_of(_capability, "[SYS_PTRACE]")
ulimits = mapping_of(_wrong_limit, whole(-1, 2**62), "{nofile: 65536}")
tmpfs = mapping_of(_wrong_tmpfs, size, "{/scratch: 64g}")


def container_user(tree: Tree) -> str:
    word = as_written(tree)  # not `text`: YAML reads 1000:1000 as a number in base 60
    is_uid_gid = _UID_GID.fullmatch(word) and all(int(n) < 2**32 - 1 for n in word.split(":"))
    if word in ("host", "root") or is_uid_gid:
        return word
    near = nearest(word, ["host", "root"])
    raise wrong(tree, shown(word), "write user: 1000:1000, for example", near)
