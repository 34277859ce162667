"""The current use of each NVIDIA GPU of a host, with the processes on it."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

from .nvidia import OWNERS, Process, owners_of
from .script import printable

SCRIPT = r"""
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin; export PATH LC_ALL=C
%OWNERS%
ask() { timeout 20 nvidia-smi "$@" --format=csv,noheader,nounits 2>/dev/null; }
ask --query-gpu=index,uuid,utilization.gpu,memory.used,memory.total,name | sed 's/^/gpu, /'
apps=$(ask --query-compute-apps=gpu_uuid,pid,used_memory)
printf '%s\n' "$apps" | sed 's/^/app, /'
owners $(printf '%s\n' "$apps" | cut -d , -f 2)
""".replace("%OWNERS%", OWNERS.strip())

_SIZE = r"([0-9]{1,9}|\[[^]]{1,20}\])"  # [N/A] on a GPU that shares the CPU's memory
_GPU = re.compile(rf"gpu, ([0-9]{{1,4}}), ([\w-]{{1,64}}), {_SIZE}, {_SIZE}, {_SIZE}, (.{{0,80}})")
_APP = re.compile(rf"app, ([\w-]{{1,64}}), ([0-9]{{1,9}}), {_SIZE}")


@dataclass(frozen=True)
class GpuUse:
    """use: percent. used, total: MiB. None if the driver does not report the value."""

    index: int
    uuid: str
    name: str
    use: int | None
    used: int | None
    total: int | None
    processes: tuple[Process, ...] = ()


def parse(text: str) -> tuple[GpuUse, ...]:
    """Parse SCRIPT's output. Skips malformed rows."""
    lines = [printable(line) for line in text.split("\n")]
    owners = owners_of(lines)
    processes: dict[str, list[Process]] = {}
    for app in filter(None, map(_APP.fullmatch, lines)):
        process = owners.get(app[2], Process(int(app[2]), 0))
        process = dataclasses.replace(process, mib=_number(app[3]) or 0)
        processes.setdefault(app[1], []).append(process)
    found = []
    for row in filter(None, map(_GPU.fullmatch, lines)):
        use, used, total = map(_number, row.group(3, 4, 5))
        theirs = tuple(processes.get(row[2], ()))
        found.append(GpuUse(int(row[1]), row[2], row[6], use, used, total, theirs))
    return tuple(found)


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None
