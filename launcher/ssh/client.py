"""Commands on a machine behind SSH: one connection, many channels."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import paramiko

from launcher.errors import CommandFailed, HostUnreachable
from launcher.hosts import Host
from launcher.ssh.ahead import dialled
from launcher.ssh.connect import Connection, dial
from launcher.ssh.shell import command_line, framed, watched
from launcher.ssh.stream import CHUNK, STDERR_TAIL, Deadline, Stream

UNTOLD = 255  # the exit code of a command whose end the server does not tell
MAX_GREETING = 1 << 20  # bytes that a login shell may print before a command
MAX_SESSIONS = 10  # a connection: sshd's own default

_BROKEN = (paramiko.SSHException, EOFError, OSError)  # what paramiko says of a connection's end


class SshMachine:
    def __init__(self, host: Host, *, connect_timeout: float) -> None:
        self.host = host
        self._timeout = connect_timeout
        self._links: list[_Link] = []
        self._lock = threading.Lock()  # of _links
        self._dialling = threading.Lock()

    def connect(self) -> None:
        if not self._live():
            self._one_more([])

    def open(
        self,
        argv: Sequence[str],
        *,
        stdin: bool = True,
        stderr_limit: int | None = STDERR_TAIL,
        timeout: float | None = None,
    ) -> SshStream:
        framed_argv, frame = framed(argv if stdin else watched(argv))
        line = command_line(framed_argv)
        link, channel = self._channel()
        try:
            channel.exec_command(line)
        except _BROKEN as error:
            channel.close()
            link.release()
            raise self._no_command(link, error) from None
        stream = SshStream(channel, link, stderr_limit=stderr_limit)
        try:
            stream.skip_past(frame, timeout)
        except BaseException:
            stream.close()
            raise
        return stream

    def close(self) -> None:
        with self._lock:
            links, self._links = self._links, []
        for link in links:
            link.connection.close()

    def _channel(self) -> tuple[_Link, paramiko.Channel]:
        """A new session on a connection that has room, or on one more connection."""
        seen: list[_Link] = []
        while True:
            for link in self._live():
                if link not in seen and (channel := self._session(link)):
                    return link, channel
                seen.append(link)
            fresh = self._one_more(seen)
            if channel := self._session(fresh):
                return fresh, channel
            if fresh.refuses_all:
                raise HostUnreachable(
                    f"{self.host.name}: sshd lets in no session at all; look at MaxSessions in its "
                    "sshd_config and at the account's shell"
                )
            seen.append(fresh)

    def _live(self) -> list[_Link]:
        with self._lock:
            dead = [link for link in self._links if not link.connection.is_active]
            self._links = [link for link in self._links if link not in dead]
            live = list(self._links)
        for link in dead:
            link.connection.close()
        return live

    def _one_more(self, seen: list[_Link]) -> _Link:
        """One connection more than `seen`; another thread may have made it meanwhile."""
        with self._dialling:
            for link in self._live():
                if link not in seen:
                    return link
            link = _Link(dialled(self.host) or dial(self.host, timeout=self._timeout))
            with self._lock:
                self._links.append(link)
            return link

    def _session(self, link: _Link) -> paramiko.Channel | None:
        """None when the connection has no room for it, or is no more."""
        if not link.take():
            return None
        try:
            return link.connection.transport.open_session(timeout=self._timeout)
        except paramiko.ChannelException:
            link.refused()
            return None
        except _BROKEN:
            link.release()
            if link.connection.is_ending():
                return None
            raise HostUnreachable(
                f"{self.host.name}: sshd starts no session within {self._timeout:g} s; look "
                "whether the machine is overloaded"
            ) from None

    def _no_command(self, link: _Link, error: BaseException) -> HostUnreachable:
        if link.connection.is_ending():
            return link.connection.lost()
        return HostUnreachable(
            f"{self.host.name}: sshd runs no commands: {error or type(error).__name__}; look at "
            "ForceCommand and the account's shell there"
        )


class _Link:
    """One connection and how many sessions it has."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._open = 0
        self._limit = MAX_SESSIONS
        self._lock = threading.Lock()
        self.refuses_all = False

    def take(self) -> bool:
        with self._lock:
            if self._open >= self._limit:
                return False
            self._open += 1
            return True

    def release(self) -> None:
        with self._lock:
            self._open -= 1
            if not self._open:
                self._limit = MAX_SESSIONS  # sshd may have been slow to forget a closed one

    def refused(self) -> None:
        """The server said no: it has as many as it wants."""
        with self._lock:
            self._open -= 1
            self.refuses_all = not self._open
            self._limit = max(self._open, 1)


class SshStream(Stream):
    def __init__(self, channel: paramiko.Channel, link: _Link, *, stderr_limit: int | None) -> None:
        super().__init__(stderr_limit=stderr_limit)
        self._channel = channel
        self._link = link
        self._closed = False
        self._ahead = b""  # output that came together with the frame
        self._drain.start()

    def skip_past(self, frame: bytes, timeout: float | None) -> None:
        """Drops what the login shell prints before `frame`, which the command prints first.

        CommandFailed when the frame does not come, TimeoutError when it is late.
        """
        deadline, output = Deadline(timeout), b""
        while frame not in output:
            data = self.read(CHUNK, deadline.left())
            output += data
            if not data or len(output) > MAX_GREETING:
                raise self._no_frame(output)
        _, _, self._ahead = output.partition(frame)

    def _no_frame(self, output: bytes) -> CommandFailed:
        printed = (output + b"\n" + self.stderr_tail().encode()).decode(errors="replace").split()
        says = f": it prints `{' '.join(printed)[:200]}`" if printed else ""
        return CommandFailed(
            f"{self._link.connection.name}: the login shell does not run `sh`{says}; check the "
            "account's shell, its startup files (.bashrc) and ForceCommand on that host"
        )

    def read(self, size: int = CHUNK, timeout: float | None = None) -> bytes:
        if self._ahead:
            ahead, self._ahead = self._ahead[:size], self._ahead[size:]
            return ahead
        data: bytes = self._patiently(self._channel.recv, size, timeout)
        if not data and not self._channel.eof_received and self._is_lost():
            raise self._link.connection.lost()
        return data

    def write(self, data: bytes | bytearray | memoryview, timeout: float | None = None) -> None:
        left = memoryview(data)
        while left:
            sent = self._patiently(self._channel.send, left[:CHUNK], timeout)
            if not sent:
                raise BrokenPipeError("standard input is closed")
            left = left[sent:]

    def close_stdin(self) -> None:
        with contextlib.suppress(*_BROKEN):  # then reading tells
            self._channel.shutdown_write()

    def wait(self, timeout: float | None = None) -> int:
        if not self._channel.status_event.wait(timeout):
            raise TimeoutError(f"still running after {timeout:g} s")
        if self._channel.exit_status >= 0:
            return int(self._channel.exit_status)
        if self._is_lost():
            raise self._link.connection.lost()
        return UNTOLD

    def is_alive(self) -> bool:
        ended = self._channel.eof_received or self._channel.status_event.is_set()
        return self._link.connection.is_active and not ended

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            with contextlib.suppress(*_BROKEN):
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
            except _BROKEN:
                if self._is_lost():
                    raise self._link.connection.lost() from None
                raise BrokenPipeError("closed") from None

    def _is_lost(self) -> bool:
        """Whether an end without the server's word for it is the connection's end."""
        if self._closed or self._channel.exit_status >= 0:
            return False
        return self._link.connection.is_ending()
