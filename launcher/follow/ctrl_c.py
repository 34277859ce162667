"""Queue Ctrl-C, Ctrl-\\ and other signals until the program can handle them.

launcher.follow.session decides what each signal does to a run that is followed, and
launcher.start.waiting_line what it does to a run that waits in line.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

LEAVING = (signal.SIGHUP, signal.SIGQUIT)  # a closed terminal and Ctrl-\: the run continues
SIGNALS = (signal.SIGINT, signal.SIGTERM, *LEAVING)


class Interrupts:
    """In a `with` block, a signal raises KeyboardInterrupt. Only the main thread gets signals.

    Inside a `held()` block, signals are only queued, so that the current action can first be
    completed or undone, and code that handles signals can `take` them. Such blocks may be nested.
    If a Ctrl-C or SIGTERM has not been taken, the end of the outermost block raises
    KeyboardInterrupt, unless the block raised an error. LEAVING signals stay queued instead,
    because they let the run continue.
    """

    def __init__(self) -> None:
        self._pending: list[int] = []
        self._holds = 0  # nested `held()` blocks
        self._before: dict[int, signal._HANDLER] = {}

    def __enter__(self) -> Interrupts:
        in_main_thread = threading.current_thread() is threading.main_thread()
        for number in SIGNALS if in_main_thread else ():
            self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
        if not self._holds and not set(self._pending) <= set(LEAVING):
            raise KeyboardInterrupt

    def take(self) -> int | None:
        """Remove and return the oldest queued signal; None if the queue is empty."""
        return self._pending.pop(0) if self._pending else None

    def forget(self) -> None:
        """Drop the queued signals."""
        self._pending.clear()

    def _receive(self, number: int, _: FrameType | None) -> None:
        if not self._holds:
            raise KeyboardInterrupt
        self._pending.append(number)
