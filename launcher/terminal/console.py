"""The output of a command: results on stdout, messages on stderr, a live display below both."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..logs.log_entry import OutputLines, render
from ..text import printable
from .sanitize import visible
from .streams import ResultStream, reserve, write_message
from .table import table

if TYPE_CHECKING:
    from .live import Live

QUIET_BEFORE = 2.0  # seconds; a step that takes longer is announced


class WarningHandler(logging.Handler):
    """Prints warnings from code that has no console, such as the SSH connections."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        self._console.say(f"warning: {record.getMessage()}")


class Console:
    """Prints results, messages and the live display. Thread-safe.

    quiet: print no messages but errors. verbose: also print details of each step. plain: no live
    display. fold: for RunLines, which merges identical lines of several ranks. results: whether to
    print results other than JSON documents. take_lines: gets a run's lines, which are then not printed.

    If writing to stdout fails, the console reports that once, and the command continues and returns
    its usual exit code.
    """

    def __init__(
        self,
        *,
        quiet: bool = False,
        verbose: bool = False,
        plain: bool = False,
        fold: bool = False,
        results: bool = True,
        take_lines: Callable[[Sequence[OutputLines]], None] | None = None,
    ) -> None:
        self.quiet, self.verbose, self.plain, self.fold = quiet, verbose, plain, fold
        self._steps: list[tuple[str, float]] = []  # (name, seconds) of each step
        self._results, self._take_lines = results, take_lines
        self._stdout = ResultStream(self.say)
        reserve("stderr")
        self._live: Live | None = None
        self._lock = threading.RLock()

    # --- messages ------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        if not self.quiet:
            self._message(text)

    def detail(self, text: str) -> None:
        if self.verbose:
            self._message(text)

    def error(self, text: str) -> None:
        for line in text.splitlines():
            self._message(f"error: {line}")

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Context manager: announce `text` if the step takes longer than QUIET_BEFORE.

        With `verbose`, announce it at once, and print the duration at the end.
        """
        self.detail(f"{text} ...")
        began = time.monotonic()
        timer = threading.Timer(QUIET_BEFORE, self.say, [f"{text} ..."])
        timer.daemon = True
        if not self.verbose:
            timer.start()
        try:
            yield
        finally:
            timer.cancel()
            seconds = time.monotonic() - began
            self._steps.append((text, seconds))
            self.detail(f"{text}: {seconds:.1f} s")

    def take_steps(self) -> list[tuple[str, float]]:
        """Return the (name, seconds) of each step since the last call."""
        steps, self._steps = self._steps, []
        return steps

    def _message(self, text: str) -> None:
        with self._lock:
            if self._live:
                self._live.hide()
                self._stdout.flush()  # earlier output comes first
            write_message(f"ddpctl: {text}")

    # --- results -------------------------------------------------------------------------------

    @property
    def on_terminal(self) -> bool:
        """Whether results are printed to a terminal."""
        return self._results and self._stdout.on_terminal

    @property
    def reader_left(self) -> bool:
        """Whether nobody can read results anymore, as after `| head`."""
        return self._stdout.reader_left

    def print(self, text: str) -> None:
        try:
            data = text.encode(errors="surrogateescape")  # keeps the bytes of a file name
        except UnicodeEncodeError:  # `text` has other lone surrogates
            data = printable(text).encode()
        self.write(data + b"\n")
        self.flush()

    def json(self, document: dict[str, Any]) -> None:
        with self._lock:
            self._write(json.dumps(document, indent=2).encode() + b"\n")
            self._stdout.flush()

    def table(
        self,
        rows: Sequence[Sequence[str]],
        head: Sequence[str],
        colors: Mapping[str, str] | None = None,
    ) -> None:
        """Print a table with the titles `head`. colors: SGR color by cell text (terminals only)."""
        shown = self.on_terminal and not os.environ.get("NO_COLOR")
        self.print(table(rows, head, colors if shown else None))

    def show(self, output: Sequence[OutputLines]) -> None:
        """Print lines with their labels. They may not be visible until `flush`."""
        if self._take_lines:
            self._take_lines(output)
        else:
            self.write(render(map(visible, output) if self.on_terminal else output))

    def write(self, data: bytes) -> None:
        """Print bytes to stdout. They may not be visible until `flush`."""
        if self._results:
            self._write(data)

    def _write(self, data: bytes) -> None:
        with self._lock:
            if self._live and data:
                self._live.hide()
            self._stdout.write(data)
            if self._live and self._live.due():  # lines may arrive without a pause
                self.flush()

    def flush(self) -> None:
        with self._lock:
            if self._results:
                self._stdout.flush()
            if self._live and self._live.due():
                self._live.draw()

    # --- the live display ----------------------------------------------------------------------

    @property
    def shows_live(self) -> bool:
        """Whether a live display is allowed and stdout and stderr are a capable terminal."""
        if self.plain or self.quiet or os.environ.get("CI"):
            return False
        capable = os.environ.get("TERM", "dumb") != "dumb"
        return capable and sys.stdout.isatty() and sys.stderr.isatty()

    @contextlib.contextmanager
    def live(self, display: Live) -> Iterator[bool]:
        """Context manager: keep `display` below all other output if `shows_live`. Yield `shows_live`."""
        if not self.shows_live:
            yield False
            return
        self.flush()
        self._live = display
        try:
            yield True
        finally:
            with self._lock:
                self._live = None
                display.hide()
