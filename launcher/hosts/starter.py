"""The work of `ddpctl init`: the text of a first hosts file, and the hosts of ~/.ssh/config."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from ..state import expanded
from . import Cluster, parse
from .json_schema import FILE

DEFAULT_IMAGE = "ddpctl-trainer:latest"
DEFAULT_COMMAND = ("-m", "trainer")
INCLUDE_DEPTH = 16  # the same limit as ssh


@dataclass(frozen=True)
class Answers:
    """hosts: names as `ssh` takes them, or `local`, each with its number of GPUs if known."""

    hosts: tuple[tuple[str, int | None], ...]
    user: str | None = None
    image: str = DEFAULT_IMAGE
    workdir: str | None = None
    dataset: str | None = None
    command: tuple[str, ...] = DEFAULT_COMMAND


def compose(answers: Answers, name: str) -> str:
    """A commented hosts file. Raises HostsFileError where the answers do not make one."""
    text = "\n".join(_lines(answers, name)) + "\n"
    parse(text, name)
    return text


def _lines(answers: Answers, name: str) -> Iterator[str]:
    yield f"# yaml-language-server: $schema={FILE.as_uri()}"
    yield f"# Hosts and job for ddpctl. Next: `ddpctl check {name}`, then `ddpctl launch {name}`."
    yield "# Paths are relative to this file. The commented lines show what else you can set."
    yield ""
    yield "defaults:                      # for every host; a host may override them"
    yield from _either(
        "user", answers.user, "ubuntu", "the SSH user; default: what `ssh HOST` uses"
    )
    yield from _either("identity_file", None, "~/.ssh/id_ed25519", "default: what `ssh HOST` uses")
    yield _row("  gpus: all", "all | a count | a list of ids | 0 for CPU")
    yield ""
    yield "hosts:                         # list order is rank order: the first is node 0, the master"
    for host, gpus in answers.hosts:
        yield f"  - host: {scalar(host)}" if gpus is not None else f"  - {scalar(host)}"
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


def hosts_in(cluster: Cluster) -> tuple[tuple[str, int | None], ...]:
    """The hosts of a hostfile under its names."""
    found = []
    for host in cluster.hosts:
        name = f"{host.user}@{host.host}" if host.user else host.host
        found.append((name, host.gpus if isinstance(host.gpus, int) else None))
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
