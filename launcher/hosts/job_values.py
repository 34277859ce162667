"""Readers for the values under `job:`, made of the building blocks in values.py."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from .problems import nearest, shown
from .tree import TEXT, Tree
from .values import as_written, list_of, mapping_of, matching, text, whole, wrong

MIB = 1024**2
LONGEST_DURATION = 365 * 86400  # seconds
_DURATION = re.compile(
    r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?|(\d{1,9})", re.ASCII
)
_SIZE = re.compile(r"(\d{1,30})\s*([kmgt]?)i?b?", re.IGNORECASE | re.ASCII)
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STARTS_PYTHON = re.compile(r"python[0-9.]*|torchrun")
_UID_GID = re.compile(r"\d{1,10}:\d{1,10}", re.ASCII)
_LIMITS = ("core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile") + (
    ("nproc", "rss", "rtprio", "rttime", "sigpending", "stack")
)
# The reference grammar of github.com/distribution/reference as one expression.
_IMAGE = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::\d+)?/)?"
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


def image(tree: Tree) -> str:
    word = text(tree)
    if not _IMAGE.fullmatch(word) or len(word) > 400:
        upper = _IMAGE.fullmatch(word.partition("@")[0].lower())
        raise wrong(tree, "use lower case" if upper else "write it as `docker images` shows it")
    return word


def command(tree: Tree) -> tuple[str, ...]:
    words = arguments(tree)
    if not words or not words[0]:
        raise wrong(tree, "write [train.py] or [-m, trainer], for example", "nothing to run")
    first = PurePosixPath(words[0]).name
    if _STARTS_PYTHON.fullmatch(first):
        raise wrong(tree, f"remove {shown(first)}: torchrun starts Python", shown(words[0]))
    return words


def arguments(tree: Tree) -> tuple[str, ...]:
    """Read a list of arguments. Numbers and `yes` stay as written."""
    if tree.kind == TEXT and (words := tree.text.split()):
        listed = ", ".join(word for word in words if not _STARTS_PYTHON.fullmatch(word))
        raise wrong(tree, f"write [{shown(listed)}]")
    return list_of(as_written, "[--epochs, 10]")(tree)


def wrong_env_name(name: str) -> str:
    """Return the remedy if an environment may not set `name`, else ""."""
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
    """Read a duration in seconds: `2h30m`, `90s`, `1d` or a number."""
    seconds = seconds_in(as_written(tree))
    if not seconds or seconds > LONGEST_DURATION:
        raise wrong(tree, "write a time from 1s to 365d")
    return seconds


def seconds_in(text: str) -> int | None:
    """Parse a duration into seconds; None if `text` is not one."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or not match[0]:
        return None
    days, hours, minutes, seconds, plain = (int(part or 0) for part in match.groups())
    return 86400 * days + 3600 * hours + 60 * minutes + seconds + plain


def size(tree: Tree) -> int:
    """Read a size in bytes: `16g`, `512m`, `16GiB` or a number."""
    match = _SIZE.fullmatch(as_written(tree).strip())
    number = int(match[1]) * _UNITS[match[2].lower()] if match else 0
    if not MIB <= number <= 2**50:
        raise wrong(tree, "write a size from 1m to 1024t")
    return number


def container_user(tree: Tree) -> str:
    word = as_written(tree)  # not `text`: YAML reads 1000:1000 as a number in base 60
    is_uid_gid = _UID_GID.fullmatch(word) and all(int(n) < 2**32 - 1 for n in word.split(":"))
    if word in ("host", "root") or is_uid_gid:
        return word
    near = nearest(word, ["host", "root"])
    raise wrong(tree, "write user: 1000:1000, for example", near=near)


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
mounts = list_of(_mount, '["/scratch:/scratch:ro"]')
tmpfs = mapping_of(_wrong_folder, size, "{/scratch: 64g}")
ulimits = mapping_of(_wrong_limit, whole(-1, 2**62), "{nofile: 65536}")
