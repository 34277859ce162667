"""Parse DeepSpeed and MPI hostfiles (`gpu1 slots=8`) and host lists (`gpu1:8,gpu2:8`).

Both become the tree of a hosts file. Each slot is a GPU: `slots=8` means `gpus: 8`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from .problems import Problem, nearest, shown
from .tree import Items, Scalar, Table, Tree
from .values import split_port

# max_slots is an Open MPI option. ddpctl never starts more processes than slots.
_KNOWN = ("slots", "max_slots", "max-slots")
_HOST = r"[^\s:,#=\[\]{}-][^\s:,#=]*"
_SLOTS_LINE = re.compile(rf"{_HOST}(:\d+)?(\s+[\w-]+\s*=\s*\S*)+")
_COUNT_LINE = re.compile(rf"{_HOST}:\d+")


def is_hostfile(text: str) -> bool:
    """Return whether the first non-empty line looks like a hostfile's."""
    first = next((line for line in map(_significant, text.splitlines()) if line), "")
    return bool(_SLOTS_LINE.fullmatch(first) or _COUNT_LINE.fullmatch(first))


class HostList(str):
    """The argument of -H: always a list of hosts, even if it looks like a file name."""


def is_host_list(hosts: str) -> bool:
    """Return whether `hosts` is a list such as `gpu1:8,gpu2:8`, and not a file name."""
    looks_like_one = re.fullmatch(r"[^\s,/]+:\d+(,[^\s,/]+)*", hosts)
    return isinstance(hosts, HostList) or bool(looks_like_one and not os.path.exists(hosts))  # noqa: PTH110


def read_hostfile(text: str, problems: list[Problem]) -> Table:
    hosts: list[Tree] = []
    for number, raw in enumerate(text.split("\n"), 1):
        if line := _significant(raw):
            name, *options = re.sub(r"\s*=\s*", "=", line).split()
            hosts.append(_host(number, len(hosts), name, options, problems))
    return Table(1, {"hosts": Items(1, tuple(hosts))})


def read_host_list(value: str, problems: list[Problem]) -> Table:
    """Parse `gpu1:8,gpu2:8`. A host without a number uses all its GPUs."""
    words = enumerate(value.split(","))
    hosts = tuple(_host(0, i, word.strip(), (), problems) for i, word in words)
    return Table(0, {"hosts": Items(0, hosts)})


def _significant(line: str) -> str:
    return line.partition("#")[0].strip()


def _host(
    line: int, index: int, word: str, options: Sequence[str], problems: list[Problem]
) -> Table:
    """Parse `[user@]name[:gpus] [slots=N]` into an entry of a hosts file."""
    name, count = split_port(word)
    given = {} if count is None else {"slots": count}
    wrong = [] if count is None or count.isdecimal() else [shown(word)]
    for text in options:
        option, equals, value = text.partition("=")
        if option in given:
            wrong.append(f"{shown(text)} twice")
        elif not equals or option not in _KNOWN or not value.isdecimal():
            wrong.append(shown(text))
        given[option] = value
    near = next((nearest(option, _KNOWN) for option in given if option not in _KNOWN), None)
    allowed = "HOST slots=N" if line else "HOST:GPUS separated by commas, such as gpu1:8,gpu2:8"
    for text in wrong:
        problem = Problem(line, f"hosts[{index}]", f"found {text}", "correct it", allowed, near)
        problems.append(problem)
    user, at, host = name.rpartition("@")
    entries = {"host": Scalar(line, host)}
    if at:
        entries["user"] = Scalar(line, user)
    if "slots" in given or wrong:  # a line with a problem must not claim GPUs
        entries["gpus"] = Scalar(line, "0" if wrong else given["slots"])
    return Table(line, entries, dict.fromkeys(entries, line))
