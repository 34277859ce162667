"""A few lines at the bottom of the terminal, redrawn while all other output scrolls above them.

Other code writes the scrolling text itself, byte for byte: `hide` removes the lines beforehand, and
`draw` restores them later. The terminal's modes are never changed, so the terminal still works
however this process ends. (With rich.live, neither is true: it renders and wraps all text again,
and hides the cursor until it ends.)
"""

import contextlib
import sys
import time
from collections.abc import Callable
from shutil import get_terminal_size

from rich.cells import cell_len
from rich.text import Text

from .sanitize import colored

EVERY = 0.5  # seconds between two drawings


class Live:
    """Draws the lines that `render` returns on stderr. `Console` calls it, one thread at a time."""

    def __init__(self, render: Callable[[int, int], list[str]], share: float = 0.5) -> None:
        """render: called with (columns, rows), returns lines. share: the fraction of rows to use."""
        self._share = share
        self._render = render
        self._shown: list[str] = []  # lines now on the terminal
        self._drawn_at = 0.0  # time.monotonic()

    def hide(self) -> None:
        """Remove the lines, before other output. The cursor returns to where the drawing began."""
        if self._shown:
            columns = get_terminal_size().columns
            # a terminal that gets narrower rewraps long lines
            widths = [cell_len(Text.from_ansi(line).plain) for line in self._shown]
            rows = sum(max(1, -(-width // columns)) for width in widths)
            self._write("\r" + "\x1b[1A" * rows + "\x1b[J")
            self._shown = []

    def due(self) -> bool:
        return time.monotonic() - self._drawn_at >= EVERY

    def draw(self) -> None:
        """Draw the lines. The caller must have flushed all other output."""
        columns, rows = get_terminal_size()
        lines = self._render(columns, max(3, int(rows * self._share)))
        self.hide()
        # an escape such as \u2500, which Python writes for what the locale lacks, is too long
        charset = sys.stderr.encoding or "utf-8"
        lines = [colored(line).encode(charset, "replace").decode(charset) for line in lines]
        self._shown, self._drawn_at = lines, time.monotonic()
        self._write("".join(f"{line}\x1b[0m\n" for line in self._shown))

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal is gone
            sys.stderr.write(text)
            sys.stderr.flush()


def fitted(text: str, columns: int, rows: int) -> list[str]:
    """Return the lines of `text` that fit, cut to `columns`. If some do not, the last line counts them."""
    lines = [line[: columns - 1] for line in text.splitlines()]
    if len(lines) <= rows:
        return lines
    return [*lines[: rows - 1], f"and {len(lines) - rows + 1} more"]
