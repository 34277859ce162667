"""A few lines at the bottom of the terminal, redrawn while everything else scrolls above them.

Others write the scrolling text themselves, byte for byte: `hide` removes the lines before they
write, `draw` puts them back some time later. The terminal's modes stay as they are, so it works as
before whatever ends this process. (rich.live keeps neither promise: it renders all text again and
wraps it, and hides the cursor until its own end.)
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from shutil import get_terminal_size

from rich.cells import cell_len
from rich.text import Text

from .sanitize import coloured

EVERY = 0.5  # seconds between two drawings


def wanted(*, plain: bool, quiet: bool) -> bool:
    """Return whether stdout and stderr are a terminal that can move its cursor, and a panel is
    welcome.
    """
    if plain or quiet or os.environ.get("CI") or os.environ.get("TERM", "dumb") == "dumb":
        return False
    return sys.stdout.isatty() and sys.stderr.isatty()


class Live:
    """Draws on stderr what `render` returns: lines without newlines. Any thread may call it."""

    def __init__(self, render: Callable[[int, int], list[str]], share: float = 0.5) -> None:
        """render: (columns, rows) -> lines. share: how much of the terminal's height to use."""
        self._share = share
        self._render = render
        self._lock = threading.RLock()
        self._shown: list[str] = []  # the lines on the terminal now
        self._drawn_at = 0.0  # time.monotonic()
        self._closed = False

    def hide(self) -> None:
        """Call it before anything else is written. The cursor returns to where the drawing began."""
        with self._lock:
            if self._shown:
                columns = get_terminal_size().columns
                rows = sum(_rows(line, columns) for line in self._shown)
                self._write("\r" + "\x1b[1A" * rows + "\x1b[J")
                self._shown = []

    def due(self) -> bool:
        return not self._closed and time.monotonic() - self._drawn_at >= EVERY

    def draw(self) -> None:
        """Flush everything else before."""
        with self._lock:
            if self._closed:
                return
            columns, rows = get_terminal_size()
            lines = [
                coloured(line) for line in self._render(columns, max(3, int(rows * self._share)))
            ]
            self.hide()
            self._write("".join(f"{line}\x1b[0m\n" for line in lines))
            self._shown, self._drawn_at = lines, time.monotonic()

    def close(self) -> None:
        """Remove the lines for good; what scrolled stays."""
        with self._lock:
            self.hide()
            self._closed = True

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal has gone away
            sys.stderr.write(text)
            sys.stderr.flush()


def _rows(line: str, columns: int) -> int:
    """Rows that a drawn line takes now: terminals wrap longer lines anew when they get narrower."""
    return max(1, -(-cell_len(Text.from_ansi(line).plain) // columns))


def fitted(text: str, columns: int, rows: int) -> list[str]:
    """Lines cut to the terminal's width, and to `rows` of them."""
    lines = [line[: columns - 1] for line in text.splitlines()]
    if len(lines) <= rows:
        return lines
    return [*lines[: rows - 1], f"and {len(lines) - rows + 1} more"]
