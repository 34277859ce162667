"""DeepSpeed and MPI hostfiles (`gpu1 slots=8`), and the same on a command line (`gpu1:8,gpu2:8`).

Each slot is a GPU: `slots=8` means `gpus: 8`. Order is rank order.
"""

from __future__ import annotations

import re

from . import values
from .cluster import Cluster, Host
from .problems import Problems, nearest, shown
from .read import read_bare
from .rules import Entry, check_rules
from .values import At, Reading, Value
from .yaml import Text

# Open MPI's limit on top of slots; ddpctl never starts more than slots.
_KNOWN = ("slots", "max_slots", "max-slots")
_HOST = r"[^\s:,#=\[\]{}-][^\s:,#=]*"
_SLOTS_LINE = re.compile(rf"{_HOST}(:\d+)?(\s+[\w-]+\s*=\s*\S*)+")
_COUNT_LINE = re.compile(rf"{_HOST}:\d+")
_ALLOWED_LINE = "HOST slots=N"
_ALLOWED_FLAG = "HOST:GPUS joined by commas, such as gpu1:8,gpu2:8"


def is_hostfile(text: str) -> bool:
    """True when the first line that says something says it as a hostfile does."""
    first = next((line for line in map(_significant, text.splitlines()) if line), "")
    return bool(_SLOTS_LINE.fullmatch(first) or _COUNT_LINE.fullmatch(first))


def is_hosts_flag(word: str) -> bool:
    """True for `gpu1:8,gpu2:8`: a list of hosts rather than the name of a file."""
    return bool(re.fullmatch(r"[^\s,/]+:\d+(,[^\s,/]+)*", word))


def parse_hostfile(text: str, source: str) -> Cluster:
    """A cluster with the default job; HostsFileError has all problems."""
    problems = Problems(source)
    if len(text) > 1_000_000:
        problems.add(0, "", "found more than 1 MB", allowed="up to 1 MB", remedy="is it this file?")
    problems.raise_any()
    entries: list[Entry | None] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = _significant(raw)
        if line:
            entries.append(_entry(line, number, f"hosts[{len(entries)}]", problems))
    return _cluster(entries, problems)


def parse_hosts_flag(value: str) -> Cluster:
    """A cluster with the default job from `gpu1:8,gpu2:8`; without a number, all GPUs."""
    problems = Problems("-H")
    entries: list[Entry | None] = []
    for i, word in enumerate(value.split(",")):
        name, count = values.split_port(word.strip())
        options = {} if count is None else {"slots": count}
        entries.append(_checked(name, options, 0, f"hosts[{i}]", _ALLOWED_FLAG, problems))
    return _cluster(entries, problems)


def _significant(line: str) -> str:
    return line.partition("#")[0].strip()


def _entry(line: str, number: int, key: str, problems: Problems) -> Entry | None:
    name, *rest = re.sub(r"\s*=\s*", "=", line).split()
    name, count = values.split_port(name)
    options = {} if count is None else {"slots": count}
    for word in rest:
        option, equals, value = word.partition("=")
        if not equals or option not in _KNOWN or option in options:
            found = f"{shown(word)} twice" if option in options else shown(word)
            problems.add(
                number,
                key,
                f"found {found}",
                allowed=_ALLOWED_LINE,
                remedy="remove or correct it",
                near=None if option in _KNOWN else nearest(option, _KNOWN),
            )
            return None
        options[option] = value
    return _checked(name, options, number, key, _ALLOWED_LINE, problems)


def _checked(
    name: str, options: dict[str, str], number: int, key: str, allowed: str, problems: Problems
) -> Entry | None:
    at = At(Reading(problems, "/", "/"), key, allowed)
    own: dict[str, Value] | None = read_bare(Text(number, name), at)
    if own is None:
        return None
    for option, written in options.items():
        count = values.whole(0, values.MAX_GPUS)(Text(number, written), at.inside(f".{option}"))
        if count is None:
            return None
        if option == "slots":
            own["gpus"] = count
    return Entry(key, number, own, own)


def _cluster(entries: list[Entry | None], problems: Problems) -> Cluster:
    good = [entry for entry in entries if entry is not None]
    check_rules(good, {}, problems)
    if not entries:
        problems.add(
            0, "hosts", "found no hosts", allowed=_ALLOWED_LINE, remedy="write one host a line"
        )
    problems.raise_any()
    return Cluster(hosts=tuple(Host(**entry.merged) for entry in good), source=problems.source)
