"""Numbers and host names in short: 0-3,5 and gpu[1-3]. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

NUMBERED = re.compile(r"(.*?)(0|[1-9]\d*)")


def ranges(numbers: Iterable[int]) -> str:
    """0-3,5 for 0 1 2 3 5, in any order."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def names(hosts: Sequence[str]) -> str:
    """gpu[1-3],login for gpu1 gpu2 gpu3 login."""
    numbers: dict[
        tuple[str, bool], list[int]
    ] = {}  # (prefix or whole name, numbered), by first sight
    for host in hosts:
        match = NUMBERED.fullmatch(host)
        key = (match[1], True) if match else (host, False)
        numbers.setdefault(key, []).extend([int(match[2])] if match else [])
    words = []
    for (name, numbered), found in numbers.items():
        span = ranges(found)
        words.append(name + (span if not numbered or span.isdigit() else f"[{span}]"))
    return ",".join(words)
