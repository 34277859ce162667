"""The lines at the bottom of the terminal leave nothing behind, even after the window was resized."""

from __future__ import annotations

import io
import os
import re
import sys

import pytest

from launcher.terminal.live import Live, fitted


class Window(io.StringIO):
    """A terminal that wraps its lines anew when its width changes, as most do."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.columns = columns
        self.lines = [""]  # the last is the cursor's

    def write(self, text: str) -> int:
        for piece in re.split(r"(\n|\x1b\[1A|\x1b\[J|\x1b\[[0-9;]*m|\r)", text):
            if piece == "\n":
                self.lines.append("")
            elif piece == "\x1b[1A":
                self._up()
            elif not piece.startswith(("\x1b", "\r")):
                self.lines[-1] += piece
        return len(text)

    def _up(self) -> None:
        """One row: the end of a wrapped line loses a row, a short line goes away as a whole."""
        if self.lines[-1] == "":
            self.lines.pop()
        last = self.lines[-1]
        kept = (max(len(last), 1) - 1) // self.columns * self.columns
        self.lines[-1] = last[:kept]


@pytest.mark.parametrize("columns", [120, 80, 79, 40, 13])
def test_nothing_is_left_when_the_window_is_resized(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = Window(80)
    size = "launcher.terminal.live.get_terminal_size"
    monkeypatch.setattr(size, lambda: os.terminal_size((window.columns, 24)))
    monkeypatch.setattr(sys, "stderr", window)
    window.write("a line of a rank\n")
    live = Live(lambda columns, _: ["\x1b[2m" + "─" * (columns - 1), "\x1b[1mrun 1", "", "é" * 30])
    live.draw()
    window.columns = columns
    live.hide()
    assert window.lines == ["a line of a rank", ""]
    live.draw()
    live.hide()
    assert window.lines == ["a line of a rank", ""]


def test_a_locale_without_a_character_makes_no_line_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    window = io.TextIOWrapper(io.BytesIO(), "latin-1", "backslashreplace")
    monkeypatch.setattr(sys, "stderr", window)
    Live(lambda *_: ["─" * 70, "né"]).draw()
    written = window.buffer.getvalue().replace(b"\x1b[0m", b"")  # type: ignore[attr-defined]
    assert written.decode("latin-1") == f"{'?' * 70}\nné\n"


def test_lines_are_cut_to_the_window() -> None:
    assert fitted("ab\ncdef", 4, 2) == ["ab", "cde"]
    assert fitted("a\nb\nc", 9, 2) == ["a", "and 2 more"]
