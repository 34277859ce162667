"""The work of `ddpctl init`: the text of a first hosts file, and the hosts of ~/.ssh/config."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import yaml

from ..state import expanded
from . import Cluster, Host, parse
from .json_schema import FILE

DEFAULT_IMAGE = "ddpctl-trainer:latest"
DEFAULT_COMMAND = ("-m", "trainer")
INCLUDE_DEPTH = 16  # the same limit as ssh


class Entry(NamedTuple):
    """A host as `ssh` takes it, or `local`. gpus: None for the default. note: becomes a comment."""

    host: str
    gpus: int | None = None
    note: str = ""


@dataclass(frozen=True)
class Answers:
    """gpus: all, a count or ids such as 0,1, for hosts without a count. None: not written."""

    hosts: tuple[Entry, ...]
    user: str | None = None
    identity_file: str | None = None
    gpus: str = "all"
    image: str = DEFAULT_IMAGE
    workdir: str | None = None
    dataset: str | None = None
    command: tuple[str, ...] = DEFAULT_COMMAND


def compose(answers: Answers, name: str) -> str:
    """A commented hosts file. Raises HostsFileError where the answers do not make one."""
    text = "\n".join(_lines(answers, name)) + "\n"
    parse(text, name)
    return text


def named_hosts(answers: Answers, name: str) -> tuple[Host, ...]:
    """The hosts of the file that the answers make."""
    return parse(compose(answers, name), name).hosts


def _lines(answers: Answers, name: str) -> Iterator[str]:
    yield f"# yaml-language-server: $schema={FILE.as_uri()}"
    yield f"# Hosts and job for ddpctl. Next: `ddpctl check {name}`, then `ddpctl launch {name}`."
    yield "# Paths are relative to this file. The commented lines show what else you can set."
    yield ""
    yield "defaults:                      # for every host; a host may override them"
    yield from _either(
        "user", answers.user, "ubuntu", "the SSH user; default: what `ssh HOST` uses"
    )
    yield from _either(
        "identity_file",
        answers.identity_file,
        "~/.ssh/id_ed25519",
        "the SSH key; default: what `ssh HOST` uses",
    )
    given = f"[{answers.gpus.strip('[]')}]" if "," in answers.gpus else answers.gpus
    yield _row(f"  gpus: {given}", "all | a count | a list of ids | 0 for CPU")
    yield ""
    yield "hosts:                         # list order is rank order: the first is node 0, the master"
    for host, gpus, note in answers.hosts:
        line = f"  - host: {scalar(host)}" if gpus is not None else f"  - {scalar(host)}"
        yield _row(line, note) if note else line
        if gpus is not None:
            yield f"    gpus: {gpus}"
    yield "#   internal_ip: 10.0.0.2      # of a host: the address for the other nodes; `check` finds it"
    yield ""
    yield "job:"
    yield _row(f"  image: {scalar(answers.image)}", "any image with Python and torch")
    yield from _either("workdir", answers.workdir, ".", "your code: pushed, mounted at /workspace")
    yield from _either(
        "dataset", answers.dataset, "./data", "your data: pushed, mounted read-only at /data"
    )
    words = ", ".join(json.dumps(word, ensure_ascii=False) for word in answers.command)
    yield _row(f"  command: [{words}]", "what torchrun runs; `-- ...` overrides it")
    yield from _either("nproc_per_node", None, "2", "default: one per GPU; 1 on a CPU host")
    yield _row("  master_port: auto", "a free port of node 0; or a number")
    yield from _either(
        "max_restarts", None, "3", "restarts of the whole job from its newest checkpoint"
    )


def _either(key: str, value: str | None, example: str, why: str) -> Iterator[str]:
    """The key with its value, or an example commented out."""
    line = f"  {key}: {scalar(value)}" if value is not None else f"# {key}: {example}"
    yield _row(line, why)


def _row(line: str, why: str) -> str:
    return f"{line:<30} # {why}"


def scalar(text: str) -> str:
    """`text` as a YAML scalar, quoted only where necessary."""
    written = yaml.safe_dump(text, allow_unicode=True, width=2**31 - 1)
    return written.removesuffix("...\n").strip()


def hosts_in(cluster: Cluster) -> tuple[Entry, ...]:
    """The hosts of a hostfile under its names."""
    found = []
    for host in cluster.hosts:
        name = f"{host.user}@{host.host}" if host.user else host.host
        found.append(Entry(name, host.gpus if isinstance(host.gpus, int) else None))
    return tuple(found)


def ssh_aliases(config: Path, folder: Path | None = None, depth: int = 0) -> list[str]:
    """The Host names of an SSH configuration and its includes, in order, without patterns.

    folder: what an Include is relative to (default: the folder of config).
    """
    folder = folder or config.parent
    try:
        lines = config.read_text(errors="replace").splitlines()
    except OSError:
        return []
    found: list[str] = []
    for line in lines:
        keyword, _, rest = line.strip().replace("=", " ", 1).partition(" ")
        words = [word.strip('"') for word in rest.split()]
        if keyword.lower() == "host":
            found += [word for word in words if not set(word) & set("*?!")]
        elif keyword.lower() == "include" and depth < INCLUDE_DEPTH:
            for path in included(words, folder):
                found += ssh_aliases(path, folder, depth + 1)
    return list(dict.fromkeys(found))


def included(patterns: Sequence[str], folder: Path) -> Iterator[Path]:
    for pattern in patterns:
        with contextlib.suppress(OSError, ValueError):  # what is no pattern includes nothing
            path = expanded(pattern)
            root = Path("/") if path.is_absolute() else folder
            yield from sorted(root.glob(str(path).lstrip("/")))
