"""Stop requests. A handler only notes the signal; the ranks agree at the next step boundary.

SIGTERM, SIGINT and SIGUSR1 ask for save-then-stop, on whichever rank they arrive. A second signal
ends this process at once, unsaved; but one that follows within two seconds is the echo of the first
(a terminal or `docker stop` signals a whole group, and torchrun passes it on to its ranks again).
"""

from __future__ import annotations

import os
import signal
import time
from types import FrameType

from trainer.errors import KILLED

ECHO = 2.0  # seconds
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopRequest:
    """Truthy once a signal came. `name` says which."""

    def __init__(self) -> None:
        self.name = ""
        self.since = 0.0

    def __bool__(self) -> bool:
        return bool(self.name)

    def listen(self) -> None:
        for number in SIGNALS:
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self.name:
            self.name = signal.Signals(number).name
            self.since = time.monotonic()
        elif time.monotonic() - self.since > ECHO:
            os._exit(KILLED)  # no cleanup: the process may be anywhere, also in a collective


def ignore() -> None:
    """From here on the run is over: let it end in order."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
