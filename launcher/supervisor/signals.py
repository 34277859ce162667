"""The signals that the supervisor passes on, as something that its loop can wait for."""

from __future__ import annotations

import signal
import socket

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def listen_for_signals() -> socket.socket:
    """A socket from which the numbers of signals can be read."""
    hear, tell = socket.socketpair()
    hear.setblocking(False)
    tell.setblocking(False)
    signal.set_wakeup_fd(tell.detach(), warn_on_full_buffer=False)
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
    return hear
