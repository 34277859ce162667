"""Hosts that did not answer a moment ago.

A command asks a host several questions, each of which would dial it again. A dial that failed after
a long wait is therefore not repeated until as much time has passed again. Code that keeps trying to
reach a host calls `forget` before each try.
"""

import time

from ..errors import HostUnreachable
from ..hosts import Host

LONG = 5.0  # seconds; a refused connection or login fails sooner
_silent: dict[Host, tuple[float, HostUnreachable]] = {}  # until when, by time.monotonic(), and why


def remember(host: Host, why: HostUnreachable, seconds: float) -> None:
    """Remember that a dial of the host failed, if that took LONG or longer."""
    if seconds >= LONG:
        _silent[host] = (time.monotonic() + seconds, why)


def forget(host: Host) -> None:
    """Let the next question dial the host, even if it did not answer a moment ago."""
    _silent.pop(host, None)


def raise_if_silent(host: Host) -> None:
    """Raise HostUnreachable if the host did not answer a moment ago."""
    until, why = _silent.get(host, (0.0, None))
    if why and time.monotonic() < until:
        raise why.on(host.name)
