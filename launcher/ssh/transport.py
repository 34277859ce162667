"""paramiko's transport, with what a launcher needs of it and does not get."""

from __future__ import annotations

import threading
import time
from signal import Signals
from typing import Any, ClassVar

import paramiko
from paramiko.common import MSG_CHANNEL_CLOSE, MSG_CHANNEL_REQUEST
from paramiko.packet import Packetizer

_SIGNALS = {signal.name.removeprefix("SIG"): signal.value for signal in Signals}
_HANDLERS: dict[int, Any] = dict(getattr(paramiko.Transport, "_channel_handler_table", {}))


def _note_signal(channel: Any, message: Any) -> None:
    """exit-signal (RFC 4254, 6.10) becomes an exit status as a shell has it, 128 + N."""
    request = paramiko.Message(message.get_remainder())
    if request.get_text() == "exit-signal":
        request.get_boolean()
        channel.exit_status = 128 + _SIGNALS.get(request.get_text(), 127)
        channel.status_event.set()
    _HANDLERS[MSG_CHANNEL_REQUEST](channel, message)


class Transport(paramiko.Transport):
    """Keeps the signal that ended a command, which paramiko throws away, and closes channels in order."""

    _channel_handler_table: ClassVar[dict[int, Any]] = {
        **_HANDLERS,
        **({MSG_CHANNEL_REQUEST: _note_signal} if _HANDLERS else {}),
    }

    def open_channel(self, *args: Any, **kwargs: Any) -> paramiko.Channel:
        channel: paramiko.Channel = super().open_channel(*args, **kwargs)
        channel._set_transport(_Way(self))  # type: ignore[attr-defined]
        return channel


class _Way:
    """One channel's way to the transport: nothing follows its CLOSE.

    A channel makes a message under its lock and sends it when it has let go of that. So the answer to
    a CLOSE of the other side may overtake the end of input that another thread is about to send, and
    sshd hangs up, with all channels, on who speaks of one that is closed.
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


class Packets(Packetizer):
    """Notes when the last packet came."""

    def __init__(self, sock: Any) -> None:
        super().__init__(sock)
        self.heard = time.monotonic()

    def read_message(self) -> Any:
        message = super().read_message()
        self.heard = time.monotonic()
        return message
