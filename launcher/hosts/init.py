"""Compose a first hosts file for `ddpctl init`, and read the hosts of ~/.ssh/config."""

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import yaml

from ..state import expanded
from . import Job, parse
from .schema import FILE

INCLUDE_DEPTH = 16  # the same limit as ssh


class HostLine(NamedTuple):
    """A host name for `ssh`, or `local`. gpus: None for the default. note: becomes a comment.

    keys: its other keys. new_key: known_hosts does not have its key.
    """

    host: str
    gpus: int | None = None
    note: str = ""
    keys: Mapping[str, object] = MappingProxyType({})
    new_key: bool = False


@dataclass(frozen=True)
class Answers:
    """The user's answers. None: show the key only as a commented-out example.

    gpus: all, a count or ids such as 0,1; for hosts without their own count.
    """

    hosts: tuple[HostLine, ...]
    user: str | None = None
    identity_file: str | None = None
    host_keys: str | None = None
    gpus: str = "all"
    image: str = Job.image
    workdir: str | None = None
    dataset: str | None = None
    command: tuple[str, ...] = Job.command


_FILE = """\
# yaml-language-server: $schema={schema}
# Hosts and job for ddpctl. Next: `ddpctl check {name}`, then `ddpctl launch {name}`.
# Paths are relative to this file. The commented lines show what else you can set.

defaults:                      # for every host; a host may override them
{defaults}

hosts:                         # list order is rank order: the first is node 0, the master
{hosts}
  # - host: gpu9.lab           # a host with keys of its own
  #   internal_ip: 10.0.0.2    # the address for the other nodes; `check` shows it

job:
{job}
"""
# Key, example (used if the user gave no answer), purpose.
_DEFAULTS = (
    ("user", "ubuntu", "the SSH user; default: what `ssh HOST` uses"),
    ("identity_file", "~/.ssh/id_ed25519", "the SSH key; default: what `ssh HOST` uses"),
    ("host_keys", "accept-new", "adds unknown host keys to known_hosts; default: ask"),
    ("gpus", "", "all | a count | a list of ids | 0 for CPU"),
)
_JOB = (
    ("image", "", "any image with Python and torch"),
    ("workdir", ".", "your code: pushed, mounted at /workspace"),
    ("dataset", "./data", "your data: pushed, mounted read-only at /data"),
    ("command", "", "what torchrun runs; `-- ...` overrides it"),
    ("nproc_per_node", "2", "default: one per GPU; 1 on a CPU host"),
    ("master_port", "", "a free port of node 0; or a number"),
    ("max_restarts", "3", "whole-job restarts, each from the newest checkpoint"),
)


def compose(answers: Answers, name: str) -> str:
    """Return a commented hosts file. Raises HostsFileError if the answers are invalid."""
    words = ", ".join(json.dumps(word, ensure_ascii=False) for word in answers.command)
    given = {key: scalar(text) for key, text in vars(answers).items() if isinstance(text, str)}
    given |= {"command": f"[{words}]", "master_port": "auto", "gpus": answers.gpus}
    if "," in answers.gpus:
        given["gpus"] = f"[{answers.gpus.strip('[]')}]"
    text = _FILE.format(
        schema=FILE.as_uri(),
        name=name,
        defaults=_rows(_DEFAULTS, given),
        hosts="\n".join(map(_host, answers.hosts)),
        job=_rows(_JOB, given),
    )
    parse(text, name)
    return text


def _rows(keys: Iterable[tuple[str, str, str]], given: Mapping[str, str]) -> str:
    """Return a line per key with its value, or with a commented-out example."""
    lines = []
    for key, example, why in keys:
        line = f"  {key}: {given[key]}" if key in given else f"  # {key}: {example}"
        lines.append(f"{line:<30} # {why}")
    return "\n".join(lines)


def _host(entry: HostLine) -> str:
    keys = dict(entry.keys) | ({} if entry.gpus is None else {"gpus": entry.gpus})
    line = f"  - {'host: ' if keys else ''}{scalar(entry.host)}"
    others = [f"    {key}: {scalar(value)}" for key, value in keys.items()]
    return "\n".join([f"{line:<30} # {entry.note}" if entry.note else line, *others])


def scalar(value: object) -> str:
    """Return a value in YAML on one line, quoted only if necessary."""
    written = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=2**31 - 1)
    return written.removesuffix("...\n").strip()


def ssh_aliases(config: Path, folder: Path | None = None, depth: int = 0) -> list[str]:
    """Return the Host names of an SSH configuration and its includes, in order, without patterns.

    folder: base of relative Includes (default: the folder of config).
    """
    folder = folder or config.parent
    try:
        lines = config.read_text(errors="replace").splitlines()
    except OSError:
        return []
    names: list[str] = []
    for line in lines:
        keyword, _, rest = line.strip().replace("=", " ", 1).partition(" ")
        words = [word.strip('"') for word in rest.split()]
        if keyword.lower() == "host":
            names += [word for word in words if not set(word) & set("*?!")]
        elif keyword.lower() == "include" and depth < INCLUDE_DEPTH:
            for word in words:
                with contextlib.suppress(OSError, ValueError):  # an invalid pattern
                    for path in sorted(Path("/").glob(str(folder / expanded(word)).lstrip("/"))):
                        names += ssh_aliases(path, folder, depth + 1)
    return list(dict.fromkeys(names))
