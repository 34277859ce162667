"""A host's recent kernel messages about failing GPUs and lack of memory."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..ssh.host_connection import HostConnection
from ..ssh.script_files import load_script
from ..supervisor.events import GpuLoad
from ..supervisor.usage import GPU_FIELDS, parse_gpus
from ..text import printable
from .gpus import pci_address
from .nvidia import xids_in

SCRIPT = load_script(__file__, "kernel_log.sh")
TIMEOUT = 30.0  # seconds; nvidia-smi is slow while a GPU fails
MOST = 400  # lines that are read; SCRIPT prints fewer
_STAMP = re.compile(r"\[ *([0-9]{1,12}\.[0-9]{1,9})\]")
_GPU = re.compile(r"gpu ([\w-]{1,64}), ([0-9a-fA-F:.]{10,16})")
_UPTIME = re.compile(r"uptime ([0-9]{1,12}(\.[0-9]{1,9})?)")


@dataclass(frozen=True)
class KernelLog:
    """A host's recent kernel messages (lines), and the GPUs that still respond.

    pci: PCI addresses by UUID. loads: utilization and error counts.
    """

    lines: tuple[str, ...] = ()
    pci: Mapping[str, str] = field(default_factory=dict)
    loads: tuple[GpuLoad, ...] = ()

    @property
    def xids(self) -> tuple[tuple[str, int], ...]:
        return xids_in(self.lines)

    def addresses(self, uuids: Sequence[str]) -> tuple[str, ...]:
        """Return the PCI addresses of these GPUs; "" if unknown.

        If the logged errors name exactly one address that belongs to no responding GPU, a GPU that
        no longer responds gets that address.
        """
        silent = {pci for pci, _ in self.xids}.difference(self.pci.values())
        only = silent.pop() if len(silent) == 1 else ""
        return tuple(self.pci.get(uuid, only) for uuid in uuids)


def read_kernel_log(connection: HostConnection, seconds: float) -> KernelLog:
    """Return a host's kernel messages of the last `seconds` seconds, and the GPUs that respond."""
    text = connection.script(SCRIPT, GPU_FIELDS, timeout=TIMEOUT).stdout.decode(errors="replace")
    return parse_kernel_log(text, seconds)


def parse_kernel_log(text: str, seconds: float) -> KernelLog:
    """Parse SCRIPT's output. A line without a time stamp counts as recent."""
    pci: dict[str, str] = {}
    lines: list[str] = []
    loads: list[str] = []
    uptime = 0.0
    for line in map(printable, text.split("\n", MOST)[:MOST]):
        if gpu := _GPU.fullmatch(line):
            pci[gpu[1]] = pci_address(gpu[2])
        elif line.startswith("load "):
            loads.append(line.removeprefix("load "))
        elif up := _UPTIME.fullmatch(line):
            uptime = float(up[1])
        elif line:
            stamp = _STAMP.match(line)
            if stamp is None or float(stamp[1]) >= uptime - seconds:
                lines.append(line)
    return KernelLog(tuple(lines), pci, parse_gpus("\n".join(loads).encode()))
