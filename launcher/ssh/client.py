"""Commands on a host: channels on one SSH connection, or on several if sshd limits sessions."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import paramiko

from ..errors import CommandFailed, HostUnreachable
from ..hosts import Host
from .connect import BROKEN, Connection, connect
from .shell import command_line, framed, watched
from .stream import CHUNK, STDERR_TAIL, Deadline, Stream
from .transport import ChannelStderr

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
                self._connections.append(connect(self.host, timeout=self._timeout))

    def open(
        self,
        argv: Sequence[str],
        *,
        stdin: bool = True,
        stderr_limit: int | None = STDERR_TAIL,
        timeout: float | None = None,
    ) -> SshStream:
        command, frame = framed(argv if stdin else watched(argv))
        line = command_line(command)
        connection, channel = self._session()
        stream = SshStream(channel, connection, ChannelStderr(channel, stderr_limit))
        try:
            channel.exec_command(line)
            stream.skip_past(frame, timeout)
        except BROKEN as error:
            stream.close()
            if isinstance(error, TimeoutError):
                raise
            raise self._no_command(connection, error) from None
        except BaseException:
            stream.close()
            raise
        return stream

    def close(self) -> None:
        connections, self._connections = self._connections, []
        for connection in connections:
            connection.close()

    def _session(self) -> tuple[Connection, paramiko.Channel]:
        """Open a session on the first connection that has room, or on a new connection."""
        full: list[Connection] = []
        while True:
            for connection in self._live():
                if connection not in full:
                    if channel := self._session_on(connection):
                        return connection, channel
                    full.append(connection)
            with self._connecting:
                if any(connection not in full for connection in self._live()):
                    continue  # another thread has just connected
                connection = connect(self.host, timeout=self._timeout)
                channel = self._session_on(connection)
                if channel is None:
                    connection.close()
                    raise HostUnreachable(
                        f"{self.host.name}: sshd allows no sessions; check MaxSessions in its "
                        "sshd_config and the account's shell"
                    )
                self._connections.append(connection)
                return connection, channel

    def _live(self) -> list[Connection]:
        for dead in [each for each in self._connections if not each.is_active]:
            with contextlib.suppress(ValueError):  # another thread has removed and closed it
                self._connections.remove(dead)
                dead.close()
        return list(self._connections)

    def _session_on(self, connection: Connection) -> paramiko.Channel | None:
        """Open a session; None if the connection has ended or has no room (MaxSessions)."""
        try:
            return connection.transport.open_session(timeout=self._timeout)
        except BROKEN as error:  # if several are refused at once, paramiko explains only one
            if "Timeout" not in str(error) or connection.is_ending():
                return None
            raise HostUnreachable(
                f"{self.host.name}: sshd did not start a session within {self._timeout:g} s; check "
                "whether the machine is overloaded"
            ) from None

    def _no_command(self, connection: Connection, error: BaseException) -> HostUnreachable:
        if connection.is_ending():
            return connection.lost()
        return HostUnreachable(
            f"{self.host.name}: sshd refused to run a command: {error or type(error).__name__}; check "
            "ForceCommand and the account's shell there"
        )


class SshStream(Stream):
    def __init__(
        self, channel: paramiko.Channel, connection: Connection, stderr: ChannelStderr
    ) -> None:
        self.stderr = stderr
        self._channel = channel
        self._connection = connection
        self._closed = False
        self._ahead = b""  # output that arrived together with the frame

    def skip_past(self, frame: bytes, timeout: float | None) -> None:
        """Skip a login shell's output up to `frame`, which the command prints first.

        Raises CommandFailed if the frame is missing, TimeoutError if it is late.
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
        quote = f": it prints `{' '.join(printed)[:200]}`" if printed else ""
        return CommandFailed(
            f"{self._connection.name}: the login shell does not run `sh`{quote}; check the "
            "account's shell, its startup files (.bashrc) and ForceCommand on that host"
        )

    def read(self, size: int = CHUNK, timeout: float | None = None) -> bytes:
        if self._ahead:
            ahead, self._ahead = self._ahead[:size], self._ahead[size:]
            return ahead
        data: bytes = self._retry(self._channel.recv, size, timeout)
        if not data and not self._channel.eof_received and self._is_lost():
            raise self._connection.lost()
        return data

    def write(self, data: bytes | bytearray | memoryview, timeout: float | None = None) -> None:
        left = memoryview(data)
        while left:
            sent = self._retry(self._channel.send, left[:CHUNK], timeout)
            if not sent:
                raise BrokenPipeError("standard input is closed")
            left = left[sent:]

    def close_stdin(self) -> None:
        with contextlib.suppress(*BROKEN):  # reading reports the loss
            self._channel.shutdown_write()

    def wait(self, timeout: float | None = None) -> int:
        if not self._channel.status_event.wait(timeout):
            raise TimeoutError(f"still running after {timeout:g} s")
        if self._channel.exit_status >= 0:
            return int(self._channel.exit_status)
        if self._is_lost():
            raise self._connection.lost()
        return UNKNOWN_CODE

    def is_alive(self) -> bool:
        ended = self._channel.eof_received or self._channel.status_event.is_set()
        return self._connection.is_active and not ended

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(*BROKEN):
            self._channel.close()

    def _retry(self, act: Callable[[Any], Any], what: Any, timeout: float | None) -> Any:
        """Retry a timed-out call: another thread may have set the channel's shared timeout lower."""
        deadline = Deadline(timeout)
        while True:
            self._channel.settimeout(deadline.left())
            try:
                return act(what)
            except TimeoutError:
                if deadline.passed:
                    raise TimeoutError(f"no output for {timeout:g} s") from None
            except BROKEN:
                if self._is_lost():
                    raise self._connection.lost() from None
                raise BrokenPipeError("closed") from None

    def _is_lost(self) -> bool:
        """Return whether the stream ended because its connection broke."""
        if self._closed or self._channel.exit_status >= 0:
            return False
        return self._connection.is_ending()
