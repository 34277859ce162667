"""A few lines at the bottom of the terminal that are drawn anew while everything else scrolls above.

What scrolls is written by others, byte for byte: before they write, the lines are taken away; some
time after, they are drawn again. Nothing of the terminal is taken over, so whatever ends this
process leaves a terminal that works.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable

EVERY = 0.5  # seconds between two drawings


def wanted(*, plain: bool, quiet: bool) -> bool:
    """Only where somebody looks at a terminal that can move its cursor."""
    if plain or quiet or os.environ.get("CI") or os.environ.get("TERM", "dumb") == "dumb":
        return False
    return sys.stdout.isatty() and sys.stderr.isatty()


class Live:
    """Draws what `render` gives, lines without newlines, on stderr. Any thread may call."""

    def __init__(self, render: Callable[[int, int], list[str]], share: float = 0.5) -> None:
        """share: of the terminal's height, what may be used."""
        self._share = share
        self._render = render  # (columns, rows that may be used) -> lines
        self._lock = threading.RLock()
        self._shown = 0  # lines on the terminal now
        self._drawn_at = 0.0  # time.monotonic()
        self._over = False

    def hide(self) -> None:
        """Before anything else is written: the cursor is back where the drawing began."""
        with self._lock:
            if self._shown:
                self._write("\r" + "\x1b[1A" * self._shown + "\x1b[J")
                self._shown = 0

    def due(self) -> bool:
        return not self._over and time.monotonic() - self._drawn_at >= EVERY

    def draw(self) -> None:
        """Everything else must have been flushed before."""
        with self._lock:
            if self._over:
                return
            columns, rows = shutil.get_terminal_size()
            lines = self._render(columns, max(3, int(rows * self._share)))
            self.hide()
            self._write("".join(f"{line}\x1b[0m\n" for line in lines))
            self._shown, self._drawn_at = len(lines), time.monotonic()

    def close(self) -> None:
        """What scrolled stays; the panel goes."""
        with self._lock:
            self.hide()
            self._over = True

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal has gone
            sys.stderr.write(text)
            sys.stderr.flush()


def fitted(text: str, columns: int, rows: int) -> list[str]:
    """Lines cut to the terminal's width, and to `rows` of them."""
    lines = [line[: columns - 1] for line in text.splitlines()]
    if len(lines) <= rows:
        return lines
    return [*lines[: rows - 1], f"and {len(lines) - rows + 1} more"]
