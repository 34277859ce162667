"""Ctrl-C, SIGTERM and a closed terminal, as values that are looked at where it is safe."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Inside `with`: signals raise KeyboardInterrupt, unless they are held.

    While held they only add up in `seen`, so that what has begun is finished or undone first.
    """

    def __init__(self) -> None:
        self.seen: list[int] = []
        self._held = False
        self._before: dict[int, signal._HANDLER] = {}

    def __enter__(self) -> Interrupts:
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._heard)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def take(self) -> int | None:
        """The oldest signal that nobody has answered yet."""
        return self.seen.pop(0) if self.seen else None

    def _heard(self, number: int, _: FrameType | None) -> None:
        if not self._held:
            raise KeyboardInterrupt
        self.seen.append(number)
