"""Short forms of long lists, as in clush: `0-3,5` for ranks, `gpu[1-3]` for host names."""

import re
from collections.abc import Iterable, Mapping

FEW = 3  # equal errors of up to this many hosts stay separate lines
_NUMBERED = re.compile(r"(.*?)(\d+)(\D*)", re.DOTALL | re.ASCII)  # split at the last number


def ranges(numbers: Iterable[int], width: int = 0) -> str:
    """Format 0, 1, 2, 3 and 5, in any order, as `0-3,5`. Zero-pad each to `width` digits."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join("-".join(f"{end:0{width}}" for end in dict.fromkeys(span)) for span in spans)


def names(hosts: Iterable[str]) -> str:
    """Format gpu1, gpu2, gpu3 and login as `gpu[1-3],login`.

    Names fold at their last number: `gpu[1-2].lab`, `10.0.0.[7-9]`, `node[08-11]`. Groups are in
    the order of their first names.
    """
    split = {host: _NUMBERED.fullmatch(host) for host in hosts}
    padded = {(m[1], m[3]) for m in split.values() if m and m[2][0] == "0" and len(m[2]) > 1}
    groups: dict[tuple[str, str, int], list[int]] = {}
    for host, m in split.items():
        if m:
            width = len(m[2]) if (m[1], m[3]) in padded else 0
            groups.setdefault((m[1], m[3], width), []).append(int(m[2]))
        else:
            groups[host, "", 0] = []
    folded = []
    for (before, after, width), numbers in groups.items():
        listed = ranges(numbers, width)
        folded.append(before + (f"[{listed}]" if len(numbers) > 1 else listed) + after)
    return ",".join(folded)


def counted(number: int, noun: str) -> str:
    """Format a count: `1 host`, `2 hosts`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def errors(by_host: Mapping[str, object]) -> list[str]:
    """Return lines with the error of each host. More than FEW hosts with one error share a line.

    Two errors are equal if they differ only in the host's own name.
    """
    same: dict[str, list[str]] = {}
    for host, error in by_host.items():
        same.setdefault(str(error).replace(host, "\0"), []).append(host)
    lines: list[str] = []
    for text, hosts in same.items():
        if len(hosts) > FEW:  # list them once; later, as in a command to try, name one
            lines.append(text.replace("\0", names(hosts), 1).replace("\0", hosts[0]))
        else:
            lines += [text.replace("\0", host) for host in hosts]
    return lines
