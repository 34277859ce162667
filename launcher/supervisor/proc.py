"""Read and signal processes, using /proc. Linux only."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import signal
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


def read_text(path: str) -> str:
    """Return a file's text; "" if it cannot be read."""
    try:
        with open(path, errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def proc_stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat, beginning with the state; [] if the process is gone.

    Raises OSError if the file cannot be read, for example because no file descriptor is free.
    """
    try:
        with open("/proc/%d/stat" % pid) as file:
            return file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def proc_environ(pid: int) -> dict[str, str]:
    pairs = read_text("/proc/%d/environ" % pid).split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def parents() -> dict[int, int]:
    """Return the parent pid of each visible process, by pid."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    stats = ((pid, proc_stat(pid)) for pid in pids)
    return {pid: int(stat[1]) for pid, stat in stats if stat}


def children(pid: int) -> list[int]:
    paths = glob.glob("/proc/%d/task/*/children" % pid)
    if paths:
        return [int(child) for path in paths for child in read_text(path).split()]
    with contextlib.suppress(OSError):  # slower; for kernels without CONFIG_PROC_CHILDREN
        return [child for child, parent in parents().items() if parent == pid]
    return []


def descendants(root: int) -> list[int]:
    by_parent: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        by_parent.setdefault(parent, []).append(pid)
    pids = [root]
    for pid in pids:
        pids += by_parent.get(pid, [])
    return pids[1:]


def pidfd(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the process exits; None before Linux 5.3."""
    fd = ctypes.CDLL(None).syscall(434, pid, 0)  # os.pidfd_open requires Python 3.9
    return fd if fd >= 0 else None


def prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def send(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):  # already gone
        os.kill(pid, number)


def end_with(parent: int) -> None:
    """Have the kernel SIGTERM this process when its parent dies. Exit if the parent is already dead."""
    # Until exec, the parent's handler would swallow the signal.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)


def kill_descendants(*spared: int, timeout: float = 10.0) -> list[int]:
    """SIGKILL and reap all our descendants except `spared`. Return those left after `timeout`."""
    deadline = time.monotonic() + timeout
    while True:
        left = [pid for pid in descendants(os.getpid()) if pid not in spared]
        for pid in left:
            send(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):  # not our child, or already reaped
                os.waitpid(pid, os.WNOHANG)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.01)


def usage(pid: int) -> tuple[int, float]:
    """Return a process's (bytes read plus written, CPU seconds); 0 for what cannot be read."""
    try:
        stat = proc_stat(pid)
    except OSError:
        stat = []
    ticks = int(stat[11]) + int(stat[12]) if stat else 0
    io = read_text("/proc/%d/io" % pid).split()  # rchar: N wchar: N ...
    return sum(map(int, io[1:4:2])), ticks / os.sysconf("SC_CLK_TCK")
