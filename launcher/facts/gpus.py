"""The GPUs of a host, the CPU cores next to them, and their IOMMU modes.

nvidia-smi lists NVIDIA GPUs. The kernel's KFD driver lists AMD GPUs in /sys/class/kfd.
"""

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..text import numbers_in

MOST_CORES = 2**13  # Linux supports no more; sets of more would take too much time and memory
_ROW = re.compile(
    r"([0-9]{1,4})\t([0-9]{1,20})\t([0-9]{1,18})"
    r"(?:\t([^\t]{0,60}))?(?:\t(vddnb)?)?(?:\t([0-9a-f:]{0,20}))?"
)
_PCI = re.compile(r"([0-9a-f:.]{10,16})\t([0-9,-]{1,1000})(?:\t([\w-]{0,20}))?")


@dataclass(frozen=True)
class Gpu:
    """A GPU. pci: domain:bus:device. cores: the CPU cores next to it. iommu: a mode, such as DMA."""

    index: int
    uuid: str
    name: str
    memory_mib: int | None  # None where memory is shared with the CPU, as on a DGX Spark
    vendor: Literal["nvidia", "amd"] = "nvidia"
    integrated: bool = False  # part of a processor, so used only if the hosts file names its id
    pci: str = ""
    cores: frozenset[int] = frozenset()
    iommu: str = ""


def nvidia_gpus(lines: Sequence[str]) -> tuple[tuple[Gpu, ...], str | None]:
    """Parse rows of index, UUID, name, MiB and, optionally, PCI address. Return the GPUs and None.

    If a row has another form, such as an error message, return () and that row. Ignores warnings,
    such as one about a corrupted infoROM, because the GPU still works.
    """
    gpus = []
    for line in (line for line in lines if not line.startswith("WARNING:")):
        parts = [part.strip() for part in line.split(",")]
        if len(parts) not in (4, 5) or not re.fullmatch(r"[0-9]{1,4}", parts[0]):
            return (), line.strip()
        memory = int(parts[3]) if re.fullmatch(r"[0-9]{1,9}", parts[3]) else None
        pci = pci_address(parts[4]) if len(parts) == 5 else ""
        gpus.append(Gpu(int(parts[0]), parts[1], parts[2], memory, pci=pci))
    return tuple(gpus), None


def amd_gpus(lines: Sequence[str]) -> tuple[Gpu, ...]:
    """Parse the rows of amd_gpus.sh. Skips malformed ones.

    Return the GPUs in ROCm's order, with ROCm's UUIDs or "".
    """
    rows = [match for line in lines[:64] if (match := _ROW.fullmatch(line))]
    gpus: list[Gpu] = []
    for row in sorted(rows, key=lambda row: int(row[1])):
        unique, mib = int(row[2]), int(row[3]) // 2**20
        uuid = f"GPU-{unique:016x}" if 0 < unique < 2**64 else ""
        name, pci = f"AMD {(row[4] or '').strip() or 'GPU'}", pci_address(row[6] or "")
        gpus.append(Gpu(len(gpus), uuid, name, mib or None, "amd", row[5] is not None, pci))
    return tuple(gpus)


def with_neighbors(gpus: Sequence[Gpu], lines: Sequence[str]) -> tuple[Gpu, ...]:
    """Return the GPUs with the CPU cores next to each, and its IOMMU mode.

    lines: rows of PCI address, CPU cores and IOMMU mode, separated by tabs.
    """
    rows = [match for line in lines[:64] if (match := _PCI.fullmatch(line))]
    near = {at: row for row in rows if (at := pci_address(row[1]))}
    return tuple(
        dataclasses.replace(gpu, cores=core_list(row[2]), iommu=row[3] or "") if row else gpu
        for gpu in gpus
        for row in [near.get(gpu.pci)]
    )


def core_list(text: str) -> frozenset[int]:
    """Parse a list of cores such as the kernel's `0-15,32-47`. Return an empty set for other text."""
    try:
        return numbers_in(text.strip(), MOST_CORES)
    except ValueError:
        return frozenset()


def pci_address(text: str) -> str:
    """Normalize a PCI address: `00000000:3B:00.0` becomes `0000:3b:00`. Return "" for other text."""
    match = re.fullmatch(r"0*([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2})(?:\.[0-9a-f])?", text.lower())
    return match[1] if match else ""
