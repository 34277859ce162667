"""One authenticated connection, which notices that its peer is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import paramiko

from ..errors import HostUnreachable
from .route import Route
from .transport import Transport

ALIVE_INTERVAL = 5.0  # seconds of silence before the server is asked for a reply
CLOSING_TIMEOUT = 1.0  # seconds: paramiko closes channels before it marks the transport inactive

BROKEN = (paramiko.SSHException, EOFError, OSError)  # what paramiko raises when a connection ends


class Connection:
    def __init__(self, transport: Transport, route: Route, close_proxy: Callable[[], None]) -> None:
        self.transport = transport
        self.name = route.name
        self._close_proxy = close_proxy
        interval = min(route.alive_interval or ALIVE_INTERVAL, ALIVE_INTERVAL)
        self._silence_limit = interval * max(route.alive_count, 2)
        self._silent = False
        transport.ask_when_silent(interval)
        _watch(self)

    @property
    def is_active(self) -> bool:
        return self.transport.is_active()

    def is_ending(self) -> bool:
        """Whether it has ended or is about to."""
        self.transport.join(CLOSING_TIMEOUT)
        return not self.transport.is_active()

    def lost(self) -> HostUnreachable:
        """Why it ended."""
        if self._silent:
            why = f"no reply for {self._silence_limit:g} s"
        else:
            why = str(self.transport.saved_exception or "") or "closed by the other side"
        return HostUnreachable(
            f"{self.name}: connection lost: {why}; check that the machine and its network are up"
        )

    def close(self) -> None:
        self.transport.close()
        self._close_proxy()

    def close_if_silent(self) -> None:
        if self.transport.seconds_silent() > self._silence_limit:
            self._silent = True
            # closing may block on a jump host that is silent too
            threading.Thread(target=self.transport.close, daemon=True).start()


# One thread watches all connections. A connection's own thread cannot: it may be blocked in a write.
_watched: list[Connection] = []
_watched_lock = threading.Lock()


def _watch(connection: Connection) -> None:
    with _watched_lock:
        _watched.append(connection)
        if len(_watched) == 1:
            threading.Thread(target=_watch_all, daemon=True, name="ssh-alive").start()


def _watch_all() -> None:
    while True:
        time.sleep(ALIVE_INTERVAL / 4)
        with _watched_lock:
            _watched[:] = [connection for connection in _watched if connection.is_active]
            if not _watched:
                return
            connections = list(_watched)
        for connection in connections:
            connection.close_if_silent()
