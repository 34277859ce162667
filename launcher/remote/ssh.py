"""Commands on a machine behind SSH: one connection, many channels."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import paramiko

from launcher.errors import HostUnreachable
from launcher.hosts import Host

from .dial import dial
from .shell import command_line, watched
from .stream import CHUNK, STDERR_TAIL, Deadline, Stream

MAX_SESSIONS = 10  # a connection: sshd's own default

log = logging.getLogger("ddpctl.remote")


class SshMachine:
    def __init__(self, host: Host, *, connect_timeout: float) -> None:
        self.host = host
        self._timeout = connect_timeout
        self._links: list[_Link] = []
        self._lock = threading.Lock()

    def connect(self) -> None:
        with self._lock:
            self._links = [link for link in self._links if link.transport.is_active()]
            if not self._links:
                self._links.append(self._dial())

    def open(
        self, argv: Sequence[str], *, stdin: bool = True, stderr_limit: int | None = STDERR_TAIL
    ) -> SshStream:
        line = command_line(argv if stdin else watched(argv))
        link, channel = self._channel()
        try:
            channel.exec_command(line)
        except (paramiko.SSHException, EOFError, OSError) as error:
            link.release()
            raise self._lost(error) from None
        return SshStream(channel, link, self.host.name, stderr_limit=stderr_limit)

    def close(self) -> None:
        with self._lock:
            links, self._links = self._links, []
        for link in links:
            link.transport.close()

    def _channel(self) -> tuple[_Link, paramiko.Channel]:
        """A new session on a connection that has room, or on one more connection."""
        with self._lock:
            self._links = [link for link in self._links if link.transport.is_active()]
            links = list(self._links)
        for link in links:
            if channel := self._session(link):
                return link, channel
        with self._lock:
            link = self._dial()
            self._links.append(link)
        if channel := self._session(link):
            return link, channel
        raise HostUnreachable(
            f"{self.host.name}: sshd lets in no session at all; look at MaxSessions in its "
            "configuration and at the account's shell"
        )

    def _session(self, link: _Link) -> paramiko.Channel | None:
        if not link.take():
            return None
        try:
            return link.transport.open_session(timeout=self._timeout)
        except paramiko.ChannelException:
            link.refused()
        except (paramiko.SSHException, EOFError, OSError):
            link.release()
            link.transport.close()
        return None

    def _dial(self) -> _Link:
        return _Link(dial(self.host, timeout=self._timeout))

    def _lost(self, error: BaseException) -> HostUnreachable:
        return HostUnreachable(
            f"{self.host.name}: connection lost: {error or type(error).__name__}"
        )


class _Link:
    """One connection and how many sessions it has."""

    def __init__(self, transport: paramiko.Transport) -> None:
        self.transport = transport
        self._open = 0
        self._limit = MAX_SESSIONS
        self._lock = threading.Lock()

    def take(self) -> bool:
        with self._lock:
            if self._open >= self._limit:
                return False
            self._open += 1
            return True

    def release(self) -> None:
        with self._lock:
            self._open -= 1

    def refused(self) -> None:
        """The server said no: it has as many as it wants."""
        with self._lock:
            self._open -= 1
            self._limit = max(self._open, 1)


class SshStream(Stream):
    def __init__(
        self, channel: paramiko.Channel, link: _Link, name: str, *, stderr_limit: int | None
    ) -> None:
        super().__init__(stderr_limit=stderr_limit)
        self._channel = channel
        self._link = link
        self._name = name
        self._closed = False
        self._drain.start()

    def read(self, size: int = CHUNK, timeout: float | None = None) -> bytes:
        data: bytes = self._patiently(self._channel.recv, size, timeout)
        if not data and not self._channel.eof_received and not self._closed:
            raise self._lost()
        return data

    def write(self, data: bytes | bytearray | memoryview, timeout: float | None = None) -> None:
        left = memoryview(data)
        while left:
            sent = self._patiently(self._channel.send, left[:CHUNK], timeout)
            if not sent:
                raise BrokenPipeError("standard input is closed")
            left = left[sent:]

    def close_stdin(self) -> None:
        self._channel.shutdown_write()

    def wait(self, timeout: float | None = None) -> int:
        if not self._channel.status_event.wait(timeout):
            raise TimeoutError(f"still running after {timeout:g} s")
        if self._channel.exit_status >= 0:
            return int(self._channel.exit_status)
        raise self._lost()

    def is_alive(self) -> bool:
        return self._link.transport.is_active() and not self._channel.eof_received

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._channel.close()
            self._link.release()

    def _read_stderr(self) -> bytes:
        try:
            data: bytes = self._patiently(self._channel.recv_stderr, CHUNK, None)
            return data
        except (OSError, HostUnreachable):
            return b""

    def _patiently(self, act: Callable[[Any], Any], what: Any, timeout: float | None) -> Any:
        """`act` has the channel's one timeout, which several threads set: it is asked again."""
        deadline = Deadline(timeout)
        while True:
            self._channel.settimeout(deadline.left())
            try:
                return act(what)
            except TimeoutError:
                if deadline.passed:
                    raise TimeoutError(f"nothing for {timeout:g} s") from None
            except OSError:
                if not self._link.transport.is_active() and not self._closed:
                    raise self._lost() from None
                raise BrokenPipeError("closed") from None

    def _lost(self) -> HostUnreachable:
        return HostUnreachable(f"{self._name}: connection lost; is the machine still up?")
