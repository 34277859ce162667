"""Read nvidia-smi's reports on a host's GPUs: their state for `check`, their use for `ps`."""

import dataclasses
import re
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ..run_id import is_run_id
from ..ssh.script_files import load_script
from ..text import printable
from .gpus import pci_address

BUSY_MIB = 500  # a GPU with at least this much memory in use is busy
MOST = 256  # maximum numbers of GPUs per host and of processes per GPU
IDLE, BUSY = 5, 50  # percent: a GPU below IDLE is odd if another GPU of its run is at BUSY or above
# Paths in nvidia-smi's XML. Which of them exist depends on the driver and the GPU.
_REPAIR_PENDING = (
    "remapped_rows/remapped_row_pending",
    "retired_pages/pending_retirement",
    "retired_pages/pending_blacklist",
)
_SLOWED = tuple(
    f"clocks_{name}_reasons/clocks_{name}_reason_{reason}"
    for name in ("event", "throttle")
    for reason in ("hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
)
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]{10,16})\): ([0-9]{1,4})\b")
_OWNER = re.compile(
    r"([0-9]{1,9})\t([^\t]{0,100})\t([0-9a-f]{64}|)\t(\S{0,64})\t([0-9]{1,11}|)\t(.{0,60})"
)
_SIZE = r"([0-9]{1,9}|\[[^]]{1,20}\])"  # [N/A] on a GPU that shares the CPU's memory
_GPU = re.compile(rf"gpu, ([0-9]{{1,4}}), ([\w-]{{1,64}}), {_SIZE}, {_SIZE}, {_SIZE}, (.{{0,80}})")
_APP = re.compile(rf"app, ([\w-]{{1,64}}), ([0-9]{{1,9}}), {_SIZE}")

USE = load_script(__file__, "gpu_use.sh")
GpuPair: TypeAlias = tuple[int, int]  # the indexes of two GPUs


@dataclass(frozen=True)
class Process:
    """A process on a GPU. mib: its GPU memory. container: the id of its container, or "".

    run_id: from the process's environment; "" if unknown. started: unix seconds.
    """

    pid: int
    mib: int = 0
    name: str = ""
    user: str = ""
    container: str = ""
    run_id: str = ""
    started: float | None = None


@dataclass(frozen=True)
class GpuState:
    index: int
    ecc: str  # Enabled, Disabled or N/A
    mig: str
    uncorrectable: int = 0  # ECC errors since the driver was loaded
    repair_pending: bool = False  # the next reset will replace faulty memory
    repair_failed: bool = False  # faulty memory could not be replaced
    slowed: bool = False  # throttled by temperature or power
    narrow: bool = False  # uses fewer PCIe lanes than it could
    pci: str = ""  # as domain:bus:device
    processes: tuple[Process, ...] = ()


@dataclass(frozen=True)
class Nvidia:
    driver: str | None = None
    cuda: tuple[int, int] | None = None  # the newest CUDA version that the driver supports
    gpus: tuple[GpuState, ...] = ()
    xids: tuple[tuple[str, int], ...] = ()  # PCI address and Xid number of each logged error
    links: Mapping[GpuPair, str] = field(default_factory=dict)  # NV18, PIX, SYS ...
    p2p: Mapping[GpuPair, str] = field(default_factory=dict)  # OK, CNS, NS ...


@dataclass(frozen=True)
class GpuUse:
    """The current use of a GPU. use: percent. used, total: MiB. None: not reported."""

    index: int
    uuid: str
    name: str
    use: int | None
    used: int | None
    total: int | None
    processes: tuple[Process, ...] = ()
    boot_id: str = ""  # equal if two hosts are one machine


def parse_nvidia(sections: defaultdict[str, list[str]]) -> Nvidia:
    """Parse the sections of facts.sh about NVIDIA GPUs. Any of them may be missing or malformed."""
    # without what precedes it, because a DTD could define entities that take up all memory
    _, *log_text = "\n".join(sections["nvidia"]).partition("<nvidia_smi_log>")
    try:
        log = ElementTree.fromstring("".join(log_text))
    except ElementTree.ParseError:
        log = ElementTree.Element("nvidia_smi_log")
    processes = _owners(sections["gpuowners"])
    cuda = re.fullmatch(r"([0-9]{1,4})\.([0-9]{1,4})", _text(log, "cuda_version"))
    return Nvidia(
        driver=_text(log, "driver_version") or None,
        cuda=(int(cuda[1]), int(cuda[2])) if cuda else None,
        gpus=tuple(_gpu(i, gpu, processes) for i, gpu in enumerate(log.findall("gpu")[:MOST])),
        xids=xids_in(sections["xid"]),
        links=gpu_pairs(sections["links"]),
        p2p=gpu_pairs(sections["p2p"]),
    )


def xids_in(kernel: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Return the PCI address and the number of each Xid error in a kernel log."""
    return tuple((pci_address(m[1]), int(m[2])) for line in kernel if (m := _XID.search(line)))


def gpu_pairs(lines: Sequence[str]) -> dict[GpuPair, str]:
    """Parse a matrix of `nvidia-smi topo`.

    Return the entry for each pair of GPUs, such as NV12 or OK.
    """
    rows = [line.split() for line in lines if re.match(r"GPU[0-9]{1,3}\s", line)]
    names = [int(words[0][3:]) for words in rows if words[0][3:].isdecimal()]
    return {
        (source, target): word
        for source, words in zip(names, rows, strict=False)
        for target, word in zip(names, words[1:], strict=False)
        if source != target
    }


def parse_use(text: str) -> tuple[GpuUse, ...]:
    """Parse USE's output. Malformed rows are ignored."""
    lines = [printable(line) for line in text.split("\n")]
    owners = _owners(lines)
    boot_id = next((line.removeprefix("boot, ") for line in lines if line.startswith("boot, ")), "")
    processes: dict[str, list[Process]] = {}
    for app in filter(None, map(_APP.fullmatch, lines)):
        process = owners.get(app[2], Process(int(app[2])))
        process = dataclasses.replace(process, mib=number(app[3]))
        processes.setdefault(app[1], []).append(process)
    gpus = []
    for row in filter(None, map(_GPU.fullmatch, lines)):
        use, used, total = (int(n) if n.isdecimal() else None for n in row.group(3, 4, 5))
        theirs = tuple(processes.get(row[2], ()))
        gpus.append(GpuUse(int(row[1]), row[2], row[6], use, used, total, theirs, boot_id))
    return tuple(gpus)


def _owners(lines: Iterable[str]) -> dict[str, Process]:
    """Parse the rows of gpu_owners.sh; skips others. Return the processes by pid, without their memory."""
    return {
        row[1]: Process(
            int(row[1]),
            name=row[6],
            user=row[2],
            container=row[3],
            run_id=row[4] if is_run_id(row[4]) else "",
            started=float(row[5]) if row[5] else None,
        )
        for row in map(_OWNER.fullmatch, lines)
        if row
    }


def _gpu(index: int, gpu: ElementTree.Element, owners: Mapping[str, Process]) -> GpuState:
    def any_is(word: str, *paths: str) -> bool:
        return any(_text(gpu, path) == word for path in paths)

    def lanes(name: str) -> int:
        return number(_text(gpu, f"pci/pci_gpu_link_info/link_widths/{name}_link_width"))

    errors = gpu.iterfind("ecc_errors/volatile/*")
    counts = [number(_text(each, ".")) for each in errors if "uncorrectable" in each.tag]
    before_ampere = number(_text(gpu, "ecc_errors/volatile/double_bit/total"))
    return GpuState(
        index=index,
        ecc=_text(gpu, "ecc_mode/current_ecc"),
        mig=_text(gpu, "mig_mode/current_mig"),
        uncorrectable=before_ampere + sum(counts),
        repair_pending=any_is("Yes", *_REPAIR_PENDING),
        repair_failed=any_is("Yes", "remapped_rows/remapped_row_failure"),
        slowed=any_is("Active", *_SLOWED),
        narrow=0 < lanes("current") < lanes("max"),
        pci=pci_address(gpu.get("id", "")),
        processes=tuple(
            dataclasses.replace(
                owners.get(pid := _text(process, "pid"), Process(number(pid))),
                mib=number(_text(process, "used_memory")),
                name=_text(process, "process_name").rsplit("/", 1)[-1],
            )
            for process in gpu.findall("processes/process_info")[:MOST]
            if "C" in (_text(process, "type") or "C")  # graphics processes use next to no memory
        ),
    )


def _text(node: ElementTree.Element, path: str) -> str:
    return (node.findtext(path) or "").strip()


def number(text: str) -> int:
    """Return the number that `text` begins with, or 0 if it begins with none."""
    match = re.match(r"\s*([0-9]{1,15})", text)
    return int(match[1]) if match else 0
