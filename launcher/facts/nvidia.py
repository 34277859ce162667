"""`nvidia-smi -q -x`, as far as a launch depends on it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class GpuProcess:
    """container: the id of the container it runs in, or ""."""

    gpu: int
    pid: int
    name: str
    mib: int
    user: str = ""
    container: str = ""


@dataclass(frozen=True)
class GpuState:
    index: int
    ecc: str  # Enabled, Disabled or N/A
    mig: str
    mib_used: int


@dataclass(frozen=True)
class Nvidia:
    driver: str | None = None
    cuda: tuple[int, int] | None = None  # the newest CUDA that the driver runs
    gpus: tuple[GpuState, ...] = ()
    processes: tuple[GpuProcess, ...] = ()


def parse_nvidia(text: str, owners: Sequence[str] = ()) -> Nvidia:
    """Empty where the text is not nvidia-smi's XML. owners: lines of `pid user container id`."""
    start = text.find("<nvidia_smi_log>")
    if start < 0:
        return Nvidia()
    try:
        log = ElementTree.fromstring(text[start:])
    except ElementTree.ParseError:
        return Nvidia()
    whose = {line.split()[0]: (line.split() + ["", ""])[1:3] for line in owners if line.split()}
    gpus, processes = [], []
    for index, gpu in enumerate(log.iter("gpu")):
        gpus.append(
            GpuState(
                index=index,
                ecc=_text(gpu, "ecc_mode/current_ecc"),
                mig=_text(gpu, "mig_mode/current_mig"),
                mib_used=_number(_text(gpu, "fb_memory_usage/used")),
            )
        )
        for process in gpu.iter("process_info"):
            if "C" not in (_text(process, "type") or "C"):
                continue  # a display, which takes next to nothing
            pid = _text(process, "pid")
            user, container = whose.get(pid, ["", ""])
            processes.append(
                GpuProcess(
                    gpu=index,
                    pid=_number(pid),
                    name=_text(process, "process_name").rsplit("/", 1)[-1],
                    mib=_number(_text(process, "used_memory")),
                    user=user,
                    container=container,
                )
            )
    cuda = re.fullmatch(r"([0-9]{1,4})\.([0-9]{1,4})", _text(log, "cuda_version"))
    return Nvidia(
        driver=_text(log, "driver_version") or None,
        cuda=(int(cuda[1]), int(cuda[2])) if cuda else None,
        gpus=tuple(gpus),
        processes=tuple(processes),
    )


def _text(node: ElementTree.Element, path: str) -> str:
    return (node.findtext(path) or "").strip()


def _number(text: str) -> int:
    match = re.match(r"[0-9]{1,12}", text)
    return int(match[0]) if match else 0
