"""The link under an SSH connection: a TCP socket, a channel of a jump host, or a ProxyCommand."""

import contextlib
import math
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from typing import Any

from ..errors import HostUnreachable

# Messages of the `ssh` in a ProxyCommand if its server drops the connection before the login.
_DROPPED = re.compile(
    r"kex_exchange_identification|[Cc]onnection (reset|closed) by|banner exchange"
)


class Dropped(Exception):
    """Raised if the server hangs up before the login, as an overloaded sshd does. Worth a retry."""


class Link:
    """A socket or a channel that paramiko uses. A peer that is silent for too long counts as gone."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._heard = time.monotonic()
        self.silence_limit = math.inf  # seconds
        self.is_silent = False  # whether the peer has exceeded the limit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def recv(self, size: int) -> bytes:
        data: bytes = self._unless_silent(self._sock.recv, size)
        self._heard = time.monotonic()
        return data

    def send(self, data: bytes) -> int:
        sent: int = self._unless_silent(self._sock.send, data)
        return sent

    def _unless_silent(self, act: Callable[[Any], Any], what: Any) -> Any:
        try:
            return act(what)
        except TimeoutError:
            if time.monotonic() - self._heard > self.silence_limit:
                self.is_silent = True
                raise EOFError from None
            raise

    def release(self) -> None:
        self._sock.close()

    def failure(self) -> Exception | None:
        """Return the error if the link itself failed, else None."""
        return None


class CommandLink(Link):
    """The standard input and output of a ProxyCommand."""

    def __init__(self, command: str) -> None:
        ours, theirs = socket.socketpair()
        super().__init__(ours)
        self._command = command
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the command)
        with theirs:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._stderr,
                start_new_session=True,
            )

    def failure(self) -> Exception | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        if not self._process.poll():
            return None  # it is running or exited with 0, so sshd hung up
        self._stderr.seek(0)
        printed = " ".join(self._stderr.read().decode(errors="replace").split())
        why = (
            f"ProxyCommand `{self._command}` failed with exit code {self._process.returncode}: "
            f"{printed[-300:] or 'it printed nothing'}"
        )
        if _DROPPED.search(printed):
            return Dropped(why)
        return HostUnreachable(why, "correct it in ~/.ssh/config")

    def release(self) -> None:
        super().release()
        self._process.terminate()
        self._process.wait()
        self._stderr.close()
