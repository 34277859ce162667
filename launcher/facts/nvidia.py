"""The fields of `nvidia-smi -q -x` that matter for a launch."""

from __future__ import annotations

import dataclasses
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..run_id import is_run_id

# The second name of each is that of older drivers.
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
_OWNER = re.compile(
    r"([0-9]{1,9})\t(\S{0,40})\t([0-9a-f]{64}|)\t(\S{0,64})\t([0-9]{1,11}|)\t(.{0,60})"
)
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]{10,16})\): ([0-9]{1,4})\b")

# Prints user, container id, run id, start (unix seconds) and name of processes by pid, where known.
OWNERS = r"""
owners() {
boot=$(sed -n 's/^btime //p' /proc/stat)
for pid; do
  uid=$(sed -n 's/^Uid:.\([0-9]*\).*/\1/p' "/proc/$pid/status" 2>/dev/null)
  user=$(id -nu "$uid" 2>/dev/null || echo "$uid")
  container=$(grep -Eo '[0-9a-f]{64}' "/proc/$pid/cgroup" 2>/dev/null | tail -n 1)
  run=$(tr '\0' '\n' 2>/dev/null < "/proc/$pid/environ" | sed -n 's/^DDPCTL_RUN_ID=//p' | head -n 1)
  stat=$(cat "/proc/$pid/stat" 2>/dev/null)
  set -- ${stat##*) }
  printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$pid" "$user" "$container" "$run" \
    "${20:+$((boot + ${20:-0} / 100))}" "$(tr -d '\n\t' 2>/dev/null < "/proc/$pid/comm")"
done 2>/dev/null
}
"""


@dataclass(frozen=True)
class Process:
    """mib: of GPU memory. container: its id, "" outside of containers. started: unix seconds.

    run_id: from the process's environment, if that is readable.
    """

    pid: int
    mib: int
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
    repair_pending: bool = False  # the next reset replaces faulty memory
    repair_failed: bool = False
    slowed: bool = False  # throttled by temperature or power
    lanes: tuple[int, int] = (0, 0)  # PCIe lanes in use, and the maximum; 0 if not reported
    pci: str = ""  # domain:bus:device
    processes: tuple[Process, ...] = ()

    @property
    def narrow(self) -> bool:
        """Whether the GPU uses fewer PCIe lanes than it could."""
        return self.lanes[0] < self.lanes[1]


@dataclass(frozen=True)
class Nvidia:
    driver: str | None = None
    cuda: tuple[int, int] | None = None  # the newest CUDA version that the driver supports
    gpus: tuple[GpuState, ...] = ()
    xids: tuple[tuple[str, int], ...] = ()  # PCI address and number of each error since boot


def parse_nvidia(text: str, owners: Sequence[str] = (), kernel: Sequence[str] = ()) -> Nvidia:
    """Parse nvidia-smi's XML; without GPUs if `text` is not XML. owners: output of OWNERS.

    kernel: lines of the kernel log with the driver's errors.
    """
    xids = tuple((_pci(m[1]), int(m[2])) for line in kernel if (m := _XID.search(line)))
    try:
        log = ElementTree.fromstring(text[max(0, text.find("<nvidia_smi_log>")) :])
    except ElementTree.ParseError:
        return Nvidia(xids=xids)
    known = owners_of(owners)
    gpus = tuple(_gpu(index, gpu, known) for index, gpu in enumerate(log.iter("gpu")))
    cuda = re.fullmatch(r"([0-9]{1,4})\.([0-9]{1,4})", _text(log, "cuda_version"))
    return Nvidia(
        driver=_text(log, "driver_version") or None,
        cuda=(int(cuda[1]), int(cuda[2])) if cuda else None,
        gpus=gpus,
        xids=xids,
    )


def owners_of(lines: Iterable[str]) -> dict[str, Process]:
    """Return the processes in OWNERS' output by pid, without their memory."""
    return {
        row[1]: Process(
            int(row[1]),
            0,
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
    return GpuState(
        index=index,
        ecc=_text(gpu, "ecc_mode/current_ecc"),
        mig=_text(gpu, "mig_mode/current_mig"),
        uncorrectable=_uncorrectable(gpu),
        repair_pending=_is(gpu, "Yes", *_REPAIR_PENDING),
        repair_failed=_is(gpu, "Yes", "remapped_rows/remapped_row_failure"),
        slowed=_is(gpu, "Active", *_SLOWED),
        lanes=_lanes(gpu),
        pci=_pci(gpu.get("id", "")),
        processes=tuple(
            dataclasses.replace(
                owners.get(pid := _text(process, "pid"), Process(_number(pid), 0)),
                mib=_number(_text(process, "used_memory")),
                name=_text(process, "process_name").rsplit("/", 1)[-1],
            )
            for process in gpu.iter("process_info")
            if "C" in (_text(process, "type") or "C")  # graphics processes use next to no memory
        ),
    )


def _pci(text: str) -> str:
    """Normalise a PCI address: `00000000:3B:00.0` and `0000:3b:00` become `0000:3b:00`."""
    match = re.fullmatch(r"0*([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2})(?:\.[0-9a-f])?", text.lower())
    return match[1] if match else ""


def _is(gpu: ElementTree.Element, word: str, *paths: str) -> bool:
    return any(_text(gpu, path) == word for path in paths)


def _uncorrectable(gpu: ElementTree.Element) -> int:
    """Count uncorrectable ECC errors, called double-bit errors before Ampere."""
    counts = [_number(_text(gpu, "ecc_errors/volatile/double_bit/total"))]
    for counter in gpu.iterfind("ecc_errors/volatile/*"):
        if "uncorrectable" in counter.tag:
            counts.append(_number((counter.text or "").strip()))
    return sum(counts)


def _lanes(gpu: ElementTree.Element) -> tuple[int, int]:
    current, most = (
        _number(_text(gpu, f"pci/pci_gpu_link_info/link_widths/{name}_link_width"))
        for name in ("current", "max")
    )
    return (current, most) if current and most else (0, 0)


def _text(node: ElementTree.Element, path: str) -> str:
    return (node.findtext(path) or "").strip()


def _number(text: str) -> int:
    match = re.match(r"[0-9]{1,12}", text)
    return int(match[0]) if match else 0
