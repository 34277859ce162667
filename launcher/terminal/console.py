"""Where words go: results to stdout, ddpctl's own messages to stderr. One writer each."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launcher.logs.fold import Fold
    from launcher.terminal.live import Live

QUIET_BEFORE = 2.0  # seconds; a step that takes longer shows that it is under way


class Console:
    """quiet: errors only. verbose: details of each step too. plain: no live display."""

    def __init__(self, *, quiet: bool = False, verbose: bool = False, plain: bool = False) -> None:
        self.quiet = quiet
        self.verbose = verbose
        self.plain = plain
        self.stdout_closed = False
        self.fold: Fold | None = None  # set: identical lines of many ranks become one
        self._live: Live | None = None
        self._lock = threading.RLock()

    def lines(self, text: bytes) -> None:
        """Whole lines of a result. A reader that has gone away is noticed once."""
        if self.fold is None:
            self._write(text)
            return
        now = time.monotonic()
        for line in text.split(b"\n")[:-1]:
            for folded in self.fold.feed(line + b"\n", now):
                self._write(folded)

    def settle(self) -> None:
        """All that still waits to be folded, out."""
        if self.fold is not None:
            for folded in self.fold.take_all():
                self._write(folded)
        self.flush()

    def _write(self, text: bytes) -> None:
        if self.stdout_closed:
            return
        with self._lock:
            if self._live:
                self._live.hide()
            try:
                sys.stdout.buffer.write(text)
            except BrokenPipeError:
                self._close_stdout()
            if self._live and self._live.due():  # lines may come without a pause
                self._flush()

    def flush(self) -> None:
        if self.fold is not None:
            for folded in self.fold.take_older(time.monotonic()):
                self._write(folded)
        self._flush()

    def _flush(self) -> None:
        if self.stdout_closed:
            return
        with self._lock:
            try:
                sys.stdout.flush()
            except BrokenPipeError:
                self._close_stdout()
            if self._live and self._live.due():
                self._live.draw()

    @contextlib.contextmanager
    def live(self, display: Live) -> Iterator[None]:
        """Inside, `display` is kept at the bottom of the terminal, below all that is written."""
        self.flush()
        self._live = display
        try:
            yield
        finally:
            with self._lock:
                self._live = None
                display.close()

    def json(self, document: dict[str, Any]) -> None:
        self.lines(json.dumps(document, indent=2).encode() + b"\n")
        self.flush()

    def print(self, text: str) -> None:
        self.lines(text.encode(errors="surrogateescape") + b"\n")
        self.flush()

    def table(
        self, rows: Sequence[Sequence[str]], head: Sequence[str], colours: Mapping[str, str]
    ) -> None:
        """colours: the SGR colour of a cell by its text, where stdout is a terminal."""
        shown = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self.print(table(rows, head, colours if shown else {}))

    def say(self, text: str) -> None:
        if not self.quiet:
            self._stderr(f"ddpctl: {text}")

    def detail(self, text: str) -> None:
        if self.verbose:
            self._stderr(f"ddpctl: {text}")

    def error(self, text: str) -> None:
        for line in text.splitlines():
            self._stderr(f"ddpctl: error: {line}")

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Says `text` when the step takes more than two seconds, and then how long it took."""
        if self.verbose:
            self.detail(f"{text} ...")
        began = time.monotonic()
        timer = threading.Timer(QUIET_BEFORE, self.say, [f"{text} ..."])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            self.detail(f"{text}: {time.monotonic() - began:.1f} s")

    def _stderr(self, text: str) -> None:
        with self._lock, contextlib.suppress(BrokenPipeError, ValueError):
            if self._live:
                self._live.hide()
                sys.stdout.flush()  # what was written before, before it
            sys.stderr.write(text + "\n")
            sys.stderr.flush()

    def _close_stdout(self) -> None:
        self.stdout_closed = True
        # the interpreter flushes stdout once more at its end, and must not fail there
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
        self.say("nobody reads stdout any more; the logs are still recorded")


def table(
    rows: Sequence[Sequence[str]],
    head: Sequence[str],
    colours: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Plain columns, two spaces apart, as docker and kubectl print them.

    colours: the SGR colour of a cell, by its text.
    """
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def cell(text: str, width: int) -> str:
        padded = text.ljust(width)
        return f"\x1b[{colours[text]}m{padded}\x1b[0m" if text in colours else padded

    return "\n".join(
        "  ".join(cell(*each) for each in zip(row, widths, strict=True)).rstrip()
        for row in [head, *rows]
    )
