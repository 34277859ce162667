"""Processes in /proc. Linux only."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import signal
import time


def proc_stat(pid: int) -> list[str]:
    """Return /proc/PID/stat after the command name: state, parent, ...; [] if the process is gone.

    Raises OSError if that is unknown, for example without a free file descriptor.
    """
    try:
        with open("/proc/%d/stat" % pid) as file:
            return file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def proc_environ(pid: int) -> dict[str, str]:
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            pairs = file.read().decode(errors="surrogateescape").split("\0")
    except OSError:
        return {}
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def syscall(pid: int) -> str:
    """Return the number of the main thread's system call, "running", or "" if hidden."""
    try:
        with open("/proc/%d/syscall" % pid) as file:
            return file.read().split()[0]
    except (OSError, IndexError):
        return ""


def children(pid: int) -> list[int]:
    found: list[int] = []
    paths = glob.glob("/proc/%d/task/*/children" % pid)
    if not paths:  # a kernel without CONFIG_PROC_CHILDREN
        return [p for p, parent in parents().items() if parent == pid]
    for path in paths:
        with contextlib.suppress(OSError), open(path) as file:
            found += map(int, file.read().split())
    return found


def parents() -> dict[int, int]:
    """Return the parent's pid of every visible process, by pid."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    stats = ((pid, proc_stat(pid)) for pid in pids)
    return {pid: int(stat[1]) for pid, stat in stats if stat}


def descendants(root: int) -> list[int]:
    by_parent: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        by_parent.setdefault(parent, []).append(pid)
    found = [root]
    for pid in found:
        found += by_parent.get(pid, [])
    return found[1:]


def pidfd(pid: int) -> int | None:
    """Return a descriptor that is readable after the exit; None on kernels before 5.3."""
    try:
        if hasattr(os, "pidfd_open"):
            return os.pidfd_open(pid)
        fd = ctypes.CDLL(None, use_errno=True).syscall(434, pid, 0)
        return fd if fd >= 0 else None
    except OSError:
        return None


def prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of ranks whose torchrun dies, so that we can kill and reap them."""
    prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def die_with_parent() -> None:
    prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: a killed supervisor leaves no torchrun running


def send(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):  # already gone
        os.kill(pid, number)


def kill_descendants(torchrun_pid: int, timeout: float = 10.0) -> list[int]:
    """SIGKILL all remaining descendants. Return those that survived even that."""
    deadline = time.monotonic() + timeout
    while True:
        left = [pid for pid in descendants(os.getpid()) if pid != torchrun_pid]
        for pid in left:
            send(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):  # another process's child, or reaped
                os.waitpid(pid, os.WNOHANG)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.01)


def usage(pid: int) -> tuple[int, float]:
    """Return (bytes read and written, CPU seconds) of a process; zeros if not visible."""
    moved, ticks = 0, 0
    with contextlib.suppress(OSError):
        stat = proc_stat(pid)
        ticks = int(stat[11]) + int(stat[12]) if stat else 0
        with open("/proc/%d/io" % pid) as file:
            moved = sum(int(line.split()[1]) for line in list(file)[:2])  # rchar, wchar
    return moved, ticks / os.sysconf("SC_CLK_TCK")
