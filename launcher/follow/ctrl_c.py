"""Queue Ctrl-C, Ctrl-\\ and other signals until the program can handle them.

launcher.follow.session decides what each signal does to a run that is followed, and
launcher.start.waiting_line what it does to a run that is waiting in line. In a recorder, every signal
does the same (`end_recorder`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import NoReturn

LEAVING = (signal.SIGHUP, signal.SIGQUIT)  # a closed terminal and Ctrl-\: the run continues
SIGNALS = (signal.SIGINT, signal.SIGTERM, *LEAVING)


def end_recorder(number: int, _: FrameType | None = None) -> NoReturn:
    """Handle a signal in a recorder: end this process and touch nothing, as if its machine had died.

    A shutdown of the machine sends SIGTERM. A started run continues. A waiting run stays WAITING
    and keeps its tickets until they expire, so that `attach` can start a recorder for it.
    """
    os._exit(128 + number)


@contextlib.contextmanager
def signals_end_recorder() -> Iterator[None]:
    """Context manager: a signal calls `end_recorder`, even in the blocks of Interrupts."""
    before = _install(dict.fromkeys(SIGNALS, end_recorder))
    try:
        yield
    finally:
        _install(before)


class Interrupts:
    """In a `with` block, a signal raises KeyboardInterrupt. Only the main thread gets signals.

    Inside a `held()` block, signals are only queued, so that the current action can first be
    completed or undone, and code that handles signals can `take` them. Such blocks may be nested.
    If a Ctrl-C or SIGTERM has not been taken, the end of the outermost block raises
    KeyboardInterrupt, unless the block raised an error. LEAVING signals stay queued instead,
    because they let the run continue. Once `can_leave` is set, they are queued outside such blocks
    too. In a recorder, no signal gets here; see `end_recorder`.
    """

    def __init__(self) -> None:
        self.can_leave = False  # set it for good once the run waits in line or has started
        self._pending: list[int] = []
        self._holds = 0  # nested `held()` blocks
        self._before: Mapping[int, signal._HANDLER] = {}

    def __enter__(self) -> Interrupts:
        if signal.getsignal(signal.SIGTERM) is end_recorder:
            return self
        self._before = _install(dict.fromkeys(SIGNALS, self._receive))
        return self

    def __exit__(self, *_: object) -> None:
        _install(self._before)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
        if not self._holds and self.asked_to_end():
            raise KeyboardInterrupt

    def sleep(self, seconds: float) -> None:
        """Sleep in a `held()` block. Then raise KeyboardInterrupt if Ctrl-C or SIGTERM is queued."""
        time.sleep(seconds)
        if self.asked_to_end():
            self.forget()
            raise KeyboardInterrupt

    def take(self) -> int | None:
        """Remove and return the oldest queued signal; None if the queue is empty."""
        return self._pending.pop(0) if self._pending else None

    def asked_to_end(self) -> bool:
        """Return whether a queued signal asks this process to end its work."""
        return not set(self._pending) <= set(LEAVING)

    def forget(self) -> None:
        """Drop the queued signals."""
        self._pending.clear()

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self._holds or (self.can_leave and number in LEAVING):
            self._pending.append(number)
        else:
            raise KeyboardInterrupt


def _install(handlers: Mapping[int, signal._HANDLER]) -> dict[int, signal._HANDLER]:
    """Install the handlers, but only in the main thread. Return the previous ones."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.signal(number, handler) for number, handler in handlers.items()}
