"""End a process with the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # from Linux's sys/prctl.h


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends. parent: its process id."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)
