"""How the values of a hosts file's `job:` are read; see values for the building blocks."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from .problems import nearest, shown
from .values import At, as_written, text
from .yaml import Sequence, Table, Text, Tree

MIB = 1024**2
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)i?b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STARTS_PYTHON = re.compile(r"python[0-9.]*|torchrun")
_UID_GID = re.compile(r"\d{1,10}:\d{1,10}")
# docker/distribution's reference grammar, in one line.
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
OWN_MOUNTS = ("/checkpoints", "/output", "/ddpctl")


def image(tree: Tree, at: At) -> str | None:
    word = text(tree, at)
    if word is None or (_IMAGE.fullmatch(word) and len(word) <= 400):
        return word
    repository = word.partition("@")[0]
    remedy = (
        "image names are lower case"
        if _IMAGE.fullmatch(repository.lower())
        else "write it as `docker images` shows it"
    )
    at.wrong(tree.line, shown(word), remedy)
    return None


def command(tree: Tree, at: At) -> tuple[str, ...] | None:
    words = arguments(tree, at)
    if words is None:
        return None
    if not words or not words[0]:
        at.wrong(tree.line, "nothing to run", "write for example [train.py] or [-m, trainer]")
        return None
    first = PurePosixPath(words[0]).name
    if _STARTS_PYTHON.fullmatch(first):
        at.wrong(tree.line, shown(words[0]), f"leave {shown(first)} out: torchrun starts Python")
        return None
    return words


def arguments(tree: Tree, at: At) -> tuple[str, ...] | None:
    """A list of arguments; numbers and `yes` stay as written."""
    if not isinstance(tree, Sequence):
        remedy = "write a list"
        if isinstance(tree, Text) and tree.text.split():
            words = [w for w in tree.text.split() if not _STARTS_PYTHON.fullmatch(w)]
            remedy = f"write [{shown(', '.join(words))}]"
        found = shown(tree.text) if isinstance(tree, Text) and tree.text else tree.kind
        at.wrong(tree.line, found, remedy)
        return None
    read = [as_written(item, at.inside(f"[{i}]")) for i, item in enumerate(tree.items)]
    return None if None in read else tuple(word for word in read if word is not None)


def env(tree: Tree, at: At) -> dict[str, str] | None:
    """Names to values as written: `{A: 1, B: yes}` gives "1" and "yes"."""
    if not isinstance(tree, Table):
        at.wrong(tree.line, tree.kind, "write NAME: value")
        return None
    values: dict[str, str] = {}
    for name, value in tree.entries.items():
        inner = at.inside(f".{shown(name)}")
        written = as_written(value, inner)
        if not env_name(name, tree.lines[name], inner) or written is None:
            continue
        values[name] = written
    return values if len(values) == len(tree.entries) else None


def env_name(name: str, line: int, at: At) -> bool:
    """True when `name` may be set; otherwise says why not."""
    if not _ENV_NAME.fullmatch(name):
        at.wrong(line, f"the name {shown(name)}", "use letters, digits and _")
    elif name in SET_BY_DDPCTL:
        at.wrong(line, f"the name {name}", "ddpctl or torchrun sets it on each node; remove it")
    else:
        return True
    return False


def mounts(tree: Tree, at: At) -> tuple[str, ...] | None:
    if not isinstance(tree, Sequence):
        at.wrong(tree.line, tree.kind, 'write a list: ["/scratch:/scratch:ro"]')
        return None
    found = [_mount(item, at.inside(f"[{i}]")) for i, item in enumerate(tree.items)]
    targets: dict[str, int] = {}
    for i, (item, mount) in enumerate(zip(tree.items, found, strict=True)):
        target = mount.split(":")[1].rstrip("/") if mount else f"#{i}"
        if target in targets:
            at.wrong(item.line, f"two mounts at {shown(target)}", "keep one of them")
            return None
        targets[target] = i
    return None if None in found else tuple(mount for mount in found if mount is not None)


def _mount(tree: Tree, at: At) -> str | None:
    word = text(tree, at)
    if word is None:
        return None
    source, target, mode = [*word.split(":"), "", "", ""][:3]
    flat = target.rstrip("/")
    if word.count(":") not in (1, 2) or not source or not target:
        remedy = "write FOLDER_ON_THE_HOST:FOLDER_IN_THE_CONTAINER[:ro]"
    elif not source.startswith("/") or not target.startswith("/"):
        remedy = "both folders are absolute; the first is a path on the hosts"
    elif word.count(":") == 2 and mode not in ("ro", "rw"):
        remedy = f"{shown(mode)} is no mode; write ro or rw"
    elif ".." in PurePosixPath(source).parts or ".." in PurePosixPath(target).parts:
        remedy = "write the folders without `..`"
    elif not flat or any(flat == own or flat.startswith(own + "/") for own in OWN_MOUNTS):
        remedy = f"{shown(target)} in the container is ddpctl's own; choose another"
    else:
        return word
    at.wrong(tree.line, shown(word), remedy)
    return None


def size(tree: Tree, at: At) -> int | None:
    """Bytes. `16g`, `512m`, `16GiB` or a number of bytes."""
    written = as_written(tree, at)
    if written is None:
        return None
    match = _SIZE.fullmatch(written.strip())
    number = int(match[1][:30]) * _UNITS[match[2].lower()] if match else -1
    if match is None:
        at.wrong(tree.line, shown(written), "write for example 16g or 512m")
    elif number < MIB:
        at.wrong(tree.line, shown(written), f"that is less than 1 MiB; write {match[1][:5]}g?")
    elif number > 2**50:
        at.wrong(tree.line, shown(written), "no machine has so much memory")
    else:
        return number
    return None


def container_user(tree: Tree, at: At) -> str | None:
    # Not `text`: YAML takes 1000:1000 for a number to the base of 60.
    word = as_written(tree, at)
    if word is None or word in ("host", "root"):
        return word
    if _UID_GID.fullmatch(word) and all(int(part) < 2**32 - 1 for part in word.split(":")):
        return word
    at.wrong(
        tree.line, shown(word), "write for example user: 1000:1000", nearest(word, ["host", "root"])
    )
    return None
