"""Stop torchrun and its ranks: send a signal, allow time to save, and send SIGKILL."""

from __future__ import annotations

import os
import signal
import time

from .flight_recorder import FlightRecorder
from .proc import descendants, send
from .ranks import Ranks
from .torchrun import Torchrun

LAST_OUTPUT = 1.0  # seconds for torchrun to report its failed ranks after they have ended
ONLY_SOURCE = 5.0  # the same, if only torchrun saw a rank or its exit code
NO_OUTPUT = 0.3  # the same, if we stopped torchrun and it has nothing to report


class StopSequence:
    """The signals that end torchrun and its ranks. The supervisor's loop sends those that are due.

    standby: the process prepared for a restart, which keeps running.
    """

    def __init__(
        self, torchrun: Torchrun, standby: Torchrun, ranks: Ranks, flight_recorder: FlightRecorder
    ) -> None:
        self._torchrun, self._standby, self._ranks = torchrun, standby, ranks
        self._flight_recorder = flight_recorder
        self._unsent = 0  # the signal to stop, if not sent to torchrun yet
        self._kill_at: float | None = None  # time.monotonic() at which SIGKILL is due
        self._alone_since: float | None = None  # when no rank was left or _kill_at had passed
        self.killed_torchrun = False  # if so, its exit code means nothing

    def begin(self, number: int, time_to_save: float, *, failed: bool) -> None:
        """Begin to stop. number: the signal for torchrun. time_to_save: see Spec.time_to_save.

        failed: whether the run has failed. If so, the ranks first dump their last collectives, if
        they can.
        """
        self._kill_at = time.monotonic() + time_to_save
        self._unsent = number
        if failed and self._flight_recorder.ask():
            send(self._torchrun.pid, signal.SIGSTOP)  # so that it does not end the other ranks
        self.send_due_signals()

    def send_due_signals(self) -> None:
        """Send the signal once the ranks have written their dumps, and SIGKILL after the timeout."""
        if self._kill_at is None:
            return
        if self._unsent and self._flight_recorder.is_ready:
            self._ask_torchrun()
        now = time.monotonic()
        if now >= self._kill_at or not self._ranks.alive():
            self._kill(now, ranks_too=now > self._kill_at)

    def _ask_torchrun(self) -> None:
        """Send torchrun the signal to stop, unless a rank has failed. Resume it with SIGCONT."""
        if pid := self._torchrun.pid:
            # after a failure, torchrun itself ends the rest; a signal would cut off its report
            if not self._ranks.failed():
                send(pid, self._unsent)
            send(pid, signal.SIGCONT)
        self._unsent = 0

    def _kill(self, now: float, *, ranks_too: bool) -> None:
        """SIGKILL the ranks if asked to, and torchrun if it does not end soon after its ranks.

        The delay lets torchrun report how the ranks ended.
        """
        self._alone_since = self._alone_since or now
        failed, reaped = self._ranks.failed(), self._ranks.reaped()
        only_source = reaped or (failed and not self._ranks.complete)
        timeout = ONLY_SOURCE if only_source else LAST_OUTPUT if failed else NO_OUTPUT
        late = now - self._alone_since > timeout
        self.killed_torchrun = self.killed_torchrun or late
        for pid in descendants(os.getpid()):
            if pid != self._standby.pid and (late or (pid != self._torchrun.pid and ranks_too)):
                send(pid, signal.SIGKILL)
