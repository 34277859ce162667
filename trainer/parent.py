"""End a process when its parent ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # from Linux's sys/prctl.h


def die_with_parent(parent: int) -> None:
    """On Linux, have the kernel kill this process when its parent ends.

    On all systems, exit if the parent has already ended. parent: the parent's process id.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent has already ended
        os._exit(1)
