"""Connections to the engine of a machine behind SSH: a command there that hands its socket on."""

from __future__ import annotations

import threading
from collections.abc import Callable

from launcher.ssh.stream import Stream

# Non-interactive logins often miss the folders where people put the docker command.
_DIAL = 'PATH="$PATH:/usr/bin:/usr/local/bin:/snap/bin:$HOME/bin"; exec docker system dial-stdio'


class DialStdio:
    """Call it for a connection. The first is begun at once: it starts while the Docker SDK loads."""

    def __init__(self, open_script: Callable[[str], Stream]) -> None:
        self._open_script = open_script
        self._begun: list[Stream] = [self._open()]
        self._lock = threading.Lock()

    def __call__(self) -> Stream:
        with self._lock:
            return self._begun.pop() if self._begun else self._open()

    def _open(self) -> Stream:
        return self._open_script(_DIAL)
