"""paramiko's transport with our own keepalives, closing order and stderr handling.

Most of this depends on paramiko's internals.
"""

import contextlib
import threading
from concurrent.futures import Future
from typing import Any

from ..budget import Deadline
from ..errors import HostUnreachable
from ..text import duration
from .background import in_background
from .lean_paramiko import paramiko
from .link import Link
from .stream import Stderr

BROKEN = (paramiko.SSHException, EOFError, OSError)  # raised by paramiko when a connection ends
ALIVE_INTERVAL = 5.0  # seconds of silence before a keepalive request
CLOSING_TIMEOUT = 1.0  # seconds; paramiko closes channels first and then deactivates the transport


class Connection(paramiko.Transport):
    """An SSH connection to `host`. on_close: what to release after it is closed."""

    def __init__(self, link: Link, host: str) -> None:
        super().__init__(link)  # type: ignore[arg-type]
        self.host = host
        self.on_close = contextlib.ExitStack()
        self._link = link
        self._ahead: Future[paramiko.Channel] | None = None  # a session for the next command
        self._ahead_lock = threading.Lock()

    def log_in(self, user: str, key: paramiko.PKey | None = None) -> list[str]:
        """Try to log in, with or without a key. Return what the server requires in addition."""
        answered = threading.Event()
        self.auth_handler = handler = _LoginRequests(self, is_first=self.auth_handler is None)
        if key:
            handler.auth_publickey(user, key, answered)
        else:
            handler.auth_none(user, answered)
        return list(handler.wait_for_response(answered))

    def open_ahead(self, timeout: float) -> None:
        """Open a session in the background, which saves the next command a round trip.

        Only with OpenSSH: Dropbear may close a session that has no command yet.
        """
        if "OpenSSH" not in self.remote_version:
            return
        with self._ahead_lock:
            self._ahead = self._ahead or in_background(
                self.open_channel, "session", timeout=timeout
            )

    def open_session(self, timeout: float) -> paramiko.Channel:  # type: ignore[override]
        deadline = Deadline(timeout)
        with self._ahead_lock:
            ahead, self._ahead = self._ahead, None
        session = None if ahead is None or ahead.exception() else ahead.result()
        if session is None or session.closed:
            session = super().open_session(timeout=deadline.left())
        self.open_ahead(timeout)
        return session

    def open_channel(self, *args: Any, **kwargs: Any) -> paramiko.Channel:
        channel: paramiko.Channel = super().open_channel(*args, **kwargs)
        channel._set_transport(_Outgoing(self))  # type: ignore[attr-defined]
        return channel

    def keep_alive(self, interval: float, count: int) -> None:
        """Ask for a reply after each `interval` seconds of silence; give up after `count` intervals.

        paramiko's own `set_keepalive` does not ask for a reply.
        """
        message = paramiko.Message()
        message.add_byte(paramiko.common.cMSG_GLOBAL_REQUEST)
        message.add_string("keepalive@openssh.com")
        message.add_boolean(True)

        def ask() -> None:  # runs in the transport's thread, which must not wait for a key exchange
            if self.clear_to_send.is_set():
                self._send_user_message(message)  # type: ignore[attr-defined]

        interval = min(interval or ALIVE_INTERVAL, ALIVE_INTERVAL)
        packets: Any = self.packetizer
        packets.set_keepalive(interval, ask)
        self._link.silence_limit = interval * max(count, 2)
        # how often an idle transport wakes up; with paramiko's 0.1 s, 1,000 hosts need a whole core
        self._link.settimeout(min(interval, 1.0))

    def loss(self) -> HostUnreachable | None:
        """Return why the connection has ended; None if it is still active after a moment."""
        self.join(CLOSING_TIMEOUT)
        if self.is_active():
            return None
        why = str(self.saved_exception or "") or "closed by the other side"
        if self._link.is_silent:
            why = f"no reply for {duration(self._link.silence_limit)}"
        remedy = "check that the machine and its network are up"
        return HostUnreachable(f"connection lost: {why}", remedy, host=self.host)

    def close(self) -> None:
        super().close()
        self.on_close.close()


class _LoginRequests(paramiko.auth_handler.AuthHandler):
    """Sends login requests at once.

    Before each request, paramiko's own asks for the login service and waits for the answer. That
    takes a round trip each time, although one answer is enough and the request need not wait for it.
    """

    def __init__(self, transport: paramiko.Transport, *, is_first: bool) -> None:
        super().__init__(transport)
        self._is_first = is_first

    def _request_auth(self) -> None:
        if self._is_first:
            super()._request_auth()  # type: ignore[misc]
        accepted = paramiko.Message()
        accepted.add_string("ssh-userauth")
        accepted.rewind()
        super()._parse_service_accept(accepted)  # type: ignore[misc]

    def _parse_service_accept(self, message: paramiko.Message) -> None:
        """Do nothing, because the login request has been sent."""


class _Outgoing:
    """Sends a channel's messages, but nothing after its CLOSE.

    A channel creates a message under its lock but sends it after releasing the lock. The answer to
    the server's CLOSE may therefore overtake another thread's end-of-file, and sshd drops
    connections that refer to a closed channel.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._lock = threading.Lock()
        self._closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _send_user_message(self, message: Any) -> None:
        with self._lock:
            if not self._closed:
                self._closed = message.asbytes()[0] == paramiko.common.MSG_CHANNEL_CLOSE
                self._transport._send_user_message(message)


class ChannelStderr(Stderr):
    """Collects a channel's stderr without a thread, and tells the server that it may send more."""

    def __init__(self, channel: Any) -> None:
        super().__init__()
        self._channel = channel
        channel.in_stderr_buffer = self

    def feed(self, data: bytes) -> None:  # runs in the transport's thread
        super().feed(data)
        if not self._channel.transport.clear_to_send.is_set():  # a key exchange; ack later
            self._channel.in_window_sofar += len(data)
        elif size := self._channel._check_add_window(len(data)):
            message = paramiko.Message()
            message.add_byte(paramiko.common.cMSG_CHANNEL_WINDOW_ADJUST)
            message.add_int(self._channel.remote_chanid)
            message.add_int(size)
            self._channel.transport._send_user_message(message)
