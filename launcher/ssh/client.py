"""Run commands on a host: in channels of one SSH connection, or of several if sshd limits sessions."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

from ..budget import Deadline
from ..errors import CommandFailed, HostUnreachable
from ..hosts import Host
from ..text import duration
from .connect import connect
from .connection import BROKEN, ChannelStderr, Connection
from .lean_paramiko import paramiko
from .shell import command_line, framed
from .stream import CHUNK, Stderr, Stream

UNKNOWN_CODE = 255  # the exit code if the server does not report one
MAX_GREETING = 1 << 20  # maximum bytes that a login shell may print before a command


class SshMachine:
    def __init__(self, host: Host, *, connect_timeout: float) -> None:
        self.host = host
        self._timeout = connect_timeout
        self._connections: list[Connection] = []
        self._connecting = threading.Lock()

    def connect(self) -> None:
        with self._connecting:
            if not self._live():
                self._connections.append(connect(self.host, self._timeout))

    def open(self, argv: Sequence[str], *, stdin: bool, tty: bool | None, timeout: float) -> Stream:
        command, frame = framed(argv, stdin=stdin)
        line = command_line(command)
        channel = self._session()
        stream = SshStream(channel, tty)
        try:
            if tty:
                frame = frame.replace(b"\n", b"\r\n")  # as it comes out of a terminal
                channel.get_pty(os.environ.get("TERM", "dumb"), *shutil.get_terminal_size())
            channel.exec_command(line)
            stream.skip_past(frame, timeout)
        except BaseException as error:
            stream.close()
            if isinstance(error, TimeoutError) or not isinstance(error, BROKEN):
                raise
            also = "PermitTTY, " if tty else ""
            raise stream.connection.loss() or HostUnreachable(
                f"sshd refused to run a command: {str(error).rstrip('.') or type(error).__name__}",
                f"check {also}ForceCommand and the account's shell on that host",
                host=self.host.name,
            ) from None
        return stream

    def close(self) -> None:
        connections, self._connections = self._connections, []
        for connection in connections:
            connection.close()

    def _session(self) -> paramiko.Channel:
        """Return a new session, on the first connection that has room or on a new connection."""
        tried = self._live()
        for connection in tried:
            if channel := self._session_on(connection):
                return channel
        with self._connecting:
            for connection in self._live():  # another thread may have just connected
                if connection not in tried and (channel := self._session_on(connection)):
                    return channel
            connection = connect(self.host, self._timeout)
            with contextlib.ExitStack() as on_failure:
                on_failure.callback(connection.close)
                if channel := self._session_on(connection):
                    on_failure.pop_all()
                    self._connections.append(connection)
                    return channel
            raise HostUnreachable(
                "sshd refused to open a session",
                "check MaxSessions in that host's sshd_config, and the account's shell",
                host=self.host.name,
            )

    def _live(self) -> list[Connection]:
        for dead in [each for each in self._connections if not each.is_active()]:
            with contextlib.suppress(ValueError):  # another thread has already removed it
                self._connections.remove(dead)
                dead.close()
        return list(self._connections)

    def _session_on(self, connection: Connection) -> paramiko.Channel | None:
        """Return a new session; None if the connection has ended or has no room (MaxSessions).

        Raises HostUnreachable if sshd does not answer in time.
        """
        try:
            return connection.open_session(timeout=self._timeout)
        except BROKEN as error:
            if "Timeout" not in str(error) or connection.loss():
                return None
            raise HostUnreachable(
                f"sshd did not start a session within {duration(self._timeout)}",
                "check whether the machine is overloaded",
                host=self.host.name,
            ) from None


class SshStream(Stream):
    def __init__(self, channel: paramiko.Channel, tty: bool | None) -> None:
        self.stderr = Stderr(ended=True) if tty is not None else ChannelStderr(channel)
        self.connection = cast(Connection, channel.get_transport())
        self._channel = channel
        self._closed = False
        self._ahead = b""  # output that arrived together with the frame

    def skip_past(self, frame: bytes, timeout: float) -> None:
        """Skip the login shell's output up to the end of `frame`, which the command prints first.

        Raises CommandFailed if the frame is missing, and TimeoutError after `timeout` seconds.
        """
        deadline, output = Deadline(timeout), b""
        while frame not in output:
            data = self.read(timeout=deadline.left())
            output += data
            if not data or len(output) > MAX_GREETING:
                shown = (output + b"\n" + self.stderr_tail().encode()).decode(errors="replace")
                quote = f": it printed `{' '.join(shown.split())[:200]}`" if shown.strip() else ""
                raise CommandFailed(
                    f"the login shell does not run `sh`{quote}",
                    "check the account's shell, its startup files (.bashrc) and ForceCommand on "
                    "that host",
                    host=self.connection.host,
                )
        _, _, self._ahead = output.partition(frame)

    def read(self, size: int = CHUNK, timeout: float | None = None) -> bytes:
        if self._ahead:
            ahead, self._ahead = self._ahead[:size], self._ahead[size:]
            return ahead
        data: bytes = self._retry(self._channel.recv, size, timeout)
        if not data and not self._channel.eof_received and (lost := self._loss()):
            raise lost
        return data

    def read_stderr(self) -> bytes:
        data: bytes = self._retry(self._channel.recv_stderr, CHUNK, None)
        return data

    def write(self, data: bytes | bytearray | memoryview, timeout: float | None = None) -> None:
        view = memoryview(data)
        for start in range(0, len(view), CHUNK):
            left, deadline = view[start : start + CHUNK], Deadline(timeout)
            while left:  # sshd may accept single bytes
                sent = self._retry(self._channel.send, left, deadline.left())
                if not sent:
                    raise BrokenPipeError("standard input is closed")
                left = left[sent:]

    def close_stdin(self) -> None:
        with contextlib.suppress(*BROKEN):  # reading will report the loss
            self._channel.shutdown_write()

    def resize(self, rows: int, columns: int) -> None:
        with contextlib.suppress(*BROKEN):  # the command has ended, or reading will report the loss
            self._channel.resize_pty(columns, rows)

    def wait(self, timeout: float | None = None) -> int:
        if not self._channel.status_event.wait(timeout):
            raise TimeoutError(f"still running after {timeout:g} s")
        if self._channel.exit_status >= 0:
            return int(self._channel.exit_status)
        if lost := self._loss():
            raise lost
        return UNKNOWN_CODE

    def is_alive(self) -> bool:
        ended = self._channel.eof_received or self._channel.status_event.is_set()
        return self.connection.is_active() and not ended

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(*BROKEN):
            self._channel.close()

    def _retry(self, act: Callable[[Any], Any], what: Any, timeout: float | None) -> Any:
        """Return `act(what)`. Retry if another thread's shorter timeout made it time out early."""
        deadline = Deadline(timeout)
        while True:
            self._channel.settimeout(deadline.left())
            try:
                return act(what)
            except TimeoutError:
                if deadline.left() == 0:
                    raise TimeoutError(f"no output for {timeout:g} s") from None
            except BROKEN:
                raise self._loss() or BrokenPipeError("closed") from None

    def _loss(self) -> HostUnreachable | None:
        """Return why the connection broke; None if the stream has ended for another reason."""
        if self._closed or self._channel.exit_status >= 0:
            return None
        return self.connection.loss()
