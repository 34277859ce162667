"""paramiko's transport with other keepalives, order of closing and handling of stderr.

All changes depend on paramiko's internals.
"""

import threading
import time
from typing import Any

import paramiko
from paramiko.common import MSG_CHANNEL_CLOSE
from paramiko.packet import Packetizer

from .stream import Stderr


class Transport(paramiko.Transport):
    def __init__(self, sock: Any) -> None:
        super().__init__(sock, packetizer_class=_Packets)

    def open_channel(self, *args: Any, **kwargs: Any) -> paramiko.Channel:
        channel: paramiko.Channel = super().open_channel(*args, **kwargs)
        channel._set_transport(_Outgoing(self))  # type: ignore[attr-defined]
        return channel

    def seconds_silent(self) -> float:
        packets: Any = self.packetizer
        return time.monotonic() - float(packets.last_packet)

    def ask_when_silent(self, interval: float) -> None:
        """Every `interval` seconds without traffic, ask for a reply; `set_keepalive` asks for none."""
        message = paramiko.Message()
        message.add_byte(paramiko.common.cMSG_GLOBAL_REQUEST)
        message.add_string("keepalive@openssh.com")
        message.add_boolean(True)

        def ask() -> None:  # runs in the transport's thread, which must not wait for a key exchange
            if self.clear_to_send.is_set():
                self._send_user_message(message)  # type: ignore[attr-defined]

        packets: Any = self.packetizer
        packets.set_keepalive(interval, ask)
        # how often an idle transport wakes up; paramiko's 0.1 s need a whole core for 1,000 hosts
        self.sock.settimeout(min(interval, 1.0))


class _Outgoing:
    """Sends a channel's messages, but nothing after its CLOSE.

    A channel creates a message under its lock and sends it after releasing the lock. So the answer
    to the server's CLOSE may overtake another thread's end-of-file, and sshd drops connections that
    refer to a closed channel.
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
                self._closed = message.asbytes()[0] == MSG_CHANNEL_CLOSE
                self._transport._send_user_message(message)


class _Packets(Packetizer):
    """Records when the last packet arrived."""

    def __init__(self, sock: Any) -> None:
        super().__init__(sock)
        self.last_packet = time.monotonic()

    def read_message(self) -> Any:
        message = super().read_message()
        self.last_packet = time.monotonic()
        return message


class ChannelStderr(Stderr):
    """Collects a channel's stderr without a thread, and lets the server send more."""

    def __init__(self, channel: Any) -> None:
        super().__init__()
        self._channel = channel
        channel.in_stderr_buffer = self

    def feed(self, data: bytes) -> None:  # runs in the transport's thread
        super().feed(data)
        if not self._channel.transport.clear_to_send.is_set():  # during a key exchange: ack later
            self._channel.in_window_sofar += len(data)
        elif size := self._channel._check_add_window(len(data)):
            message = paramiko.Message()
            message.add_byte(paramiko.common.cMSG_CHANNEL_WINDOW_ADJUST)
            message.add_int(self._channel.remote_chanid)
            message.add_int(size)
            self._channel.transport._send_user_message(message)
