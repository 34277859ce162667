"""Compose a first hosts file for `ddpctl init`, and read the hosts of ~/.ssh/config."""

import contextlib
import itertools
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

from ..own_folders import current_folder, expanded
from . import Host, Job, parse
from .addresses import split_login
from .cluster import changed
from .schema import FILE

INCLUDE_DEPTH = 16  # the same limit as ssh

_FILE = """\
# yaml-language-server: $schema={schema}
# Hosts and job for ddpctl. Next: `ddpctl check {name}`, then `ddpctl launch {name}`.
# Paths are relative to this file. The commented-out lines show what else you can set.

defaults:                      # for every host; a host may override them
{defaults}

hosts:                         # list order is rank order: the first is node 0, the master
{hosts}
  # - host: gpu9.lab           # a host with keys of its own
  #   internal_ip: 10.0.0.2    # the address that other nodes use; `check` shows it

job:
{job}
"""
# Each key with its default or an example, and its purpose.
_DEFAULTS = (
    ("user", "ubuntu", "the SSH user; default: what `ssh HOST` uses"),
    ("identity_file", "~/.ssh/id_ed25519", "the SSH key; default: what `ssh HOST` uses"),
    ("host_keys", "accept-new", "adds unknown host keys to known_hosts; the default refuses them"),
    ("gpus", "all", "all | a count | a list of ids | 0 for CPU"),
)
_JOB = (
    ("image", Job.image, "any image with Python and torch"),
    ("workdir", ".", "your code, pushed and mounted at /workspace"),
    ("dataset", "./data", "your data, pushed and mounted read-only at /data"),
    ("command", Job.command, "what torchrun runs; `ddpctl launch -- ...` overrides it"),
    ("nproc_per_node", 2, "default: one per GPU; 1 on a CPU host"),
    ("master_port", "auto", "any free port on node 0, or a number"),
    ("max_restarts", 3, "whole-job restarts, each from the newest checkpoint"),
)
_PATHS = ("identity_file", "workdir", "dataset")
_ALWAYS = ("gpus", "image", "command", "master_port")  # the others are commented out unless given


def compose(
    hosts: Iterable[Host],
    given: Mapping[str, object],
    name: str,
    notes: Mapping[str, str] | None = None,
) -> str:
    """Return a hosts file with comments. given: the values of `defaults:` and `job:`, by key.

    Paths in `given` are relative to the current folder. given["gpus"]: all, a count or ids such as
    0,1. A Host.host may be a login such as me@gpu1:2222. name: the file's path. notes: a comment on
    each host, by Host.host. Raises HostsFileError if a value is invalid.
    """
    paths = {key: _seen_from(name, str(given[key])) for key in _PATHS if key in given}
    written = {key: scalar(value) for key, value in {**given, **paths}.items()}
    if "gpus" in given:
        gpus = str(given["gpus"])
        written["gpus"] = f"[{gpus.strip('[]')}]" if "," in gpus else gpus
    text = _FILE.format(
        schema=FILE.as_uri(),
        name=name,
        defaults=_rows(_DEFAULTS, written),
        hosts="\n".join(_host(host, (notes or {}).get(host.host, "")) for host in hosts),
        job=_rows(_JOB, written),
    )
    parse(text, name)
    return text


def _seen_from(file: str, path: str) -> str:
    """Return a path relative to the file's folder; unchanged if it is absolute, "" or a URL."""
    folder = Path(file).parent
    same = folder == Path() or expanded(path).is_absolute() or not path or "://" in path
    return path if same else os.path.relpath(current_folder() / path, folder)


def _rows(keys: Iterable[tuple[str, object, str]], written: Mapping[str, str]) -> str:
    """Return one line per key, with its value or a commented-out example."""
    lines = []
    for key, default, why in keys:
        mark = "" if key in written or key in _ALWAYS else "# "
        lines.append(f"{f'  {mark}{key}: {written.get(key, scalar(default))}':<30} # {why}")
    return "\n".join(lines)


def _host(host: Host, note: str) -> str:
    keys, name = changed(host, Host(host.host)), host.host
    if keys:  # `host:` does not accept a login such as me@gpu1:2222
        login = split_login(name)
        name, keys = login.pop("host"), {**login, **keys}
    line = f"  - {'host: ' if keys else ''}{scalar(name)}"
    others = [
        f"    {key}: {value if key == 'port' else scalar(value)}" for key, value in keys.items()
    ]
    return "\n".join([f"{line:<30} # {note}" if note else line, *others])


def scalar(value: object) -> str:
    """Return a value as one line of YAML, quoted only if necessary."""
    written = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=2**31 - 1)
    return written.removesuffix("...\n").strip()


def ssh_aliases(config: Path, folder: Path | None = None, depth: int = 0) -> list[str]:
    """Return the Host names in an SSH configuration and its includes, in order, without patterns.

    folder: the folder that relative Includes start from (default: the one with `config`).
    """
    folder = folder or config.parent
    try:
        lines = config.read_text(errors="replace").splitlines()
    except OSError:
        return []
    names: list[str] = []
    for line in lines:
        keyword, *words = [word.strip('"') for word in line.replace("=", " ", 1).split()] or [""]
        words = list(itertools.takewhile(lambda word: word[:1] != "#", words))
        if keyword.lower() == "host":
            names += [word for word in words if not set(word) & set("*?!")]
        elif keyword.lower() == "include" and depth < INCLUDE_DEPTH:
            for word in words:
                with contextlib.suppress(OSError, ValueError):  # an invalid pattern
                    for path in sorted(Path("/").glob(str(folder / expanded(word)).lstrip("/"))):
                        names += ssh_aliases(path, folder, depth + 1)
    return list(dict.fromkeys(names))
