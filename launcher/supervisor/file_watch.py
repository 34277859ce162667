"""To be woken when a file grows: inotify(7), by ctypes as Python has none. Linux only."""

from __future__ import annotations

import ctypes
import os
from typing import Iterable

CHANGED = 0x2 | 0x100 | 0x80000000  # IN_MODIFY | IN_CREATE | IN_ONESHOT
EVENTS = 4096  # bytes to read them by; they only wake us


class Growth:
    """One event, whichever path it is, then silence until armed again: a flood wakes nobody."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)  # -1: none is left
        self.armed = False

    def arm(self, paths: Iterable[str]) -> bool:
        """True when it is armed from now on: what came before wakes nobody, so look once more."""
        if self.armed or self.fd < 0:
            return False
        watched = [self._libc.inotify_add_watch(self.fd, os.fsencode(p), CHANGED) for p in paths]
        self.armed = any(watch >= 0 for watch in watched)
        return self.armed

    def heard(self) -> None:
        self.armed = False
        try:
            while os.read(self.fd, EVENTS):
                pass
        except BlockingIOError:
            pass
