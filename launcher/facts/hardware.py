"""The facts that only `check` needs: disks, memory, GPU drivers and more."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ..text import one_line
from .nvidia import Nvidia, number, parse_nvidia

LONGEST_COMMAND = 80  # characters shown; a command line may contain anything, including passwords


@dataclass(frozen=True)
class Disk:
    """The disk that holds `path`. kib, kib_free: size and free space in units of 1024 bytes.

    inodes_free: None if the file system has no limit on inodes.
    """

    path: str
    mount: str
    kib: int
    kib_free: int
    inodes_free: int | None


@dataclass(frozen=True)
class Details:
    """The facts that only `check` needs."""

    disks: tuple[Disk, ...] = ()
    memory_kib: int = 0
    memory_available_kib: int = 0
    memlock: str = "unlimited"  # or a number, in KiB
    open_files: str = "unlimited"  # or a number
    resolved: str | None = None  # the IP address that the host resolves its own name to
    missing: tuple[str, ...] = ()  # requested folders that do not exist
    home_error: str = ""  # why ~/.ddpctl is not writable; "" if it is
    firewalls: tuple[str, ...] = ()
    holder: str = ""  # the process that listens on the master port
    kernel_driver: str | None = None  # version of the loaded NVIDIA module
    open_driver: bool = False  # that module is NVIDIA's open one
    peermem: bool = False  # nvidia-peermem is loaded, for GPUDirect RDMA
    acs: bool = False  # a PCIe switch redirects transfers; False if only root can see that
    xgmi: bool = False  # XGMI links AMD GPUs
    nvswitches: int = 0
    fabric_manager: bool = False  # it is running, or the host hides whether it is
    toolkit: bool = False  # the NVIDIA container toolkit is installed
    cdi: bool = False  # there is a CDI specification of the GPUs
    subuids: bool = False  # the SSH user has subordinate uids for the users of a container
    lingers: bool = True  # the SSH user's processes survive a logout
    nvidia: Nvidia = field(default_factory=Nvidia)

    def disk(self, path: str) -> Disk | None:
        return next((disk for disk in self.disks if disk.path == path), None)


def details(sections: defaultdict[str, list[str]], first: Callable[[str], str]) -> Details:
    """Parse the script's output, given by section. Unreadable values keep their defaults.

    first: a function that returns the first line of a section, or "".
    """
    writable = sections["writable"]
    memory = dict(row.partition(":")[::2] for row in sections["memory"])
    driver = re.search(
        r"\s([0-9]{1,9}\.[0-9.]{1,20})", first("driver").partition("Kernel Module")[2]
    )
    return Details(
        disks=tuple(_disks(sections["disk"])),
        memory_kib=number(memory.get("MemTotal", "")),
        memory_available_kib=number(memory.get("MemAvailable", "")),
        memlock=first("memlock") or "unlimited",
        open_files=first("nofile") or "unlimited",
        resolved=first("resolved").partition(" ")[0] or None,
        missing=tuple(sections["missing"]),
        home_error="" if "yes" in writable else first("writable") or "permission denied",
        firewalls=tuple(sections["firewall"]),
        holder=_holder(sections["holder"]),
        kernel_driver=driver[1] if driver else None,
        open_driver="Open Kernel Module" in first("driver"),
        peermem=bool(sections["peermem"]),
        acs=bool(sections["acs"]),
        xgmi=bool(sections["xgmi"]),
        nvswitches=len(sections["nvswitch"]),
        fabric_manager=bool(sections["fabricmanager"]),
        toolkit=bool(sections["toolkit"]),
        cdi=bool(sections["cdi"]),
        subuids=bool(sections["subuids"]),
        lingers=not sections["logout"],
        nvidia=parse_nvidia(sections),
    )


_DF_ROW = re.compile(
    r"\s([0-9]{1,18}|-)\s+(?:[0-9]+|-)\s+(-?[0-9]{1,18}|-)\s+(?:[0-9]+%|-)\s+(/.*)$"
)


def _disks(lines: Sequence[str]) -> Iterator[Disk]:
    """Parse a line `path PATH`, the output of `df -Pk` and that of `df -Pi` for each path.

    Skips a path for which `df` has no sizes.
    """
    for part in re.split(r"^path ", "\n".join(lines), flags=re.MULTILINE)[1:]:
        path, *rows = part.splitlines()
        blocks, inodes = ([*filter(None, map(_DF_ROW.search, rows)), None, None])[:2]
        if blocks is None or "-" in (blocks[1], blocks[2]) or blocks[1] == "0":
            continue  # df failed, or the path is in /proc or similar
        kib, free, mount = int(blocks[1]), max(0, int(blocks[2])), blocks[3]
        # btrfs and NFS do not count inodes
        counted = inodes is not None and inodes[1] not in ("0", "-") and inodes[2].isdecimal()
        yield Disk(path, mount, kib, free, int(inodes[2]) if inodes and counted else None)


def _holder(lines: Sequence[str]) -> str:
    """Describe the process on the master port by its command, user and, if visible, pid."""
    user, pid, command = [*"".join(lines[:1]).split("\t", 2), "", ""][:3]
    who = f"user {user}, pid {number(pid)}" if number(pid) else f"user {user}"
    return f"{one_line(command, LONGEST_COMMAND) or 'a process'} ({who})" if user else ""
