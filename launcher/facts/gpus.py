"""The GPUs of a host.

nvidia-smi lists NVIDIA's. The kernel's KFD driver lists AMD's in /sys/class/kfd, without any tool.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

_ROW = re.compile(r"([0-9]{1,4})\t([0-9]{1,20})\t([0-9]{1,18})(?:\t([^\t]{0,60}))?(?:\t(vddnb)?)?")


@dataclass(frozen=True)
class Gpu:
    index: int
    uuid: str
    name: str
    memory_mib: int | None  # None where memory is shared with the CPU, as on a DGX Spark
    vendor: Literal["nvidia", "amd"] = "nvidia"
    integrated: bool = False  # part of a processor: used only where the hosts file names its id


def nvidia_gpus(lines: Sequence[str]) -> tuple[tuple[Gpu, ...], str | None]:
    """Parse rows of index, uuid, name and MiB. Any other row is an error: return () and that row."""
    gpus = []
    for line in lines:
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != 4 or not re.fullmatch(r"[0-9]{1,4}", parts[0]):
            return (), line.strip()
        memory = int(parts[3]) if re.fullmatch(r"[0-9]{1,9}", parts[3]) else None
        gpus.append(Gpu(int(parts[0]), parts[1], parts[2], memory))
    return tuple(gpus), None


def amd_gpus(lines: Sequence[str]) -> tuple[Gpu, ...]:
    """Return the GPUs in ROCm's order, each with the UUID that ROCm uses, if it has one."""
    rows = [match for line in lines[:64] if (match := _ROW.fullmatch(line))]
    gpus: list[Gpu] = []
    for row in sorted(rows, key=lambda row: int(row[1])):
        unique, mib = int(row[2]), int(row[3]) // 2**20
        uuid = f"GPU-{unique:016x}" if 0 < unique < 2**64 else ""
        name = f"AMD {(row[4] or '').strip() or 'GPU'}"
        gpus.append(Gpu(len(gpus), uuid, name, mib or None, "amd", row[5] is not None))
    return tuple(gpus)
