"""The one writer of stdout (results) and stderr (ddpctl's own messages)."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TextIO

from .sanitize import Sanitizer, plain

if TYPE_CHECKING:
    from ..logs.fold import Fold
    from .live import Live

QUIET_BEFORE = 2.0  # seconds; a step that takes longer is announced
LOGGER = logging.getLogger("ddpctl")
LOGGER.addHandler(logging.NullHandler())  # otherwise Python prints errors that no handler takes
_NO_COLOURS: Mapping[str, str] = MappingProxyType({})


class Console:
    """quiet: errors only. verbose: also details of each step. plain: no live display.

    Files and pipes get log lines byte for byte; a terminal gets them without escape sequences other
    than colours. A stdout that cannot be written is reported once and then left alone: the command
    goes on, and its exit code is its own.
    """

    def __init__(self, *, quiet: bool = False, verbose: bool = False, plain: bool = False) -> None:
        self.quiet = quiet
        self.verbose = verbose
        self.plain = plain
        self.steps: list[tuple[str, float]] = []  # of `step`: what it was, and its seconds
        self.stdout_closed = _reserve("stdout")
        _reserve("stderr")
        self.fold: Fold | None = None  # set: identical lines of many ranks become one
        self._live: Live | None = None
        self._lock = threading.RLock()
        self._sanitizer = Sanitizer()

    def lines(self, text: bytes) -> None:
        """Whole lines of a result."""
        if self.fold is None:
            self._write(text)
            return
        now = time.monotonic()
        for line in text.split(b"\n")[:-1]:
            for folded in self.fold.feed(line + b"\n", now):
                self._write(folded)

    def settle(self) -> None:
        """Write all that still waits to be folded."""
        if self.fold is not None:
            for folded in self.fold.take_all():
                self._write(folded)
        self.flush()

    def flush(self) -> None:
        if self.fold is not None:
            for folded in self.fold.take_older(time.monotonic()):
                self._write(folded)
        self._flush()

    @contextlib.contextmanager
    def live(self, display: Live) -> Iterator[None]:
        """Keep `display` at the bottom of the terminal, below all that is written meanwhile."""
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
        self,
        rows: Sequence[Sequence[str]],
        head: Sequence[str],
        colours: Mapping[str, str] = _NO_COLOURS,
    ) -> None:
        """colours: the SGR colour of a cell by its text, for a terminal."""
        shown = self.on_terminal and not os.environ.get("NO_COLOR")
        self.print(table(rows, head, colours if shown else _NO_COLOURS))

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
        """Announce `text` if the step takes more than two seconds. verbose: also how long it took."""
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
            self.steps.append((text, time.monotonic() - began))
            self.detail(f"{text}: {self.steps[-1][1]:.1f} s")

    @property
    def on_terminal(self) -> bool:
        return not self.stdout_closed and sys.stdout.isatty()

    def _write(self, text: bytes) -> None:
        with self._lock:
            if self._live:
                self._live.hide()
            if self.on_terminal:
                shown = self._sanitizer.feed(text)
                text = shown.encode(sys.stdout.encoding or "utf-8", errors="replace")
            self._try_stdout(lambda: sys.stdout.buffer.write(text))
            if self._live and self._live.due():  # lines may come without a pause
                self._flush()

    def _flush(self) -> None:
        with self._lock:
            self._try_stdout(lambda: sys.stdout.flush())
            if self._live and self._live.due():
                self._live.draw()

    def _try_stdout(self, act: Callable[[], object]) -> None:
        if self.stdout_closed:
            return
        try:
            act()
        except OSError as error:  # its reader has left, or its disk is full
            self.stdout_closed = True
            _abandon(sys.stdout)
            reason = "its reader has left" if error.errno == errno.EPIPE else error.strerror
            self.say(f"nothing more is printed on stdout: {reason}")

    def _stderr(self, text: str) -> None:
        with self._lock:
            if self._live:
                self._live.hide()
                self._try_stdout(lambda: sys.stdout.flush())  # what was written before comes first
            try:
                sys.stderr.write(plain(text) + "\n")
                sys.stderr.flush()
            except OSError:
                _abandon(sys.stderr)


class LoggingConsole(Console):
    """For programs: prints nothing. What the command line says on stderr is logged as INFO or DEBUG."""

    def __init__(self) -> None:
        super().__init__(quiet=True, plain=True)
        self.stdout_closed = True

    def say(self, text: str) -> None:
        LOGGER.info("%s", text)

    def detail(self, text: str) -> None:
        LOGGER.debug("%s", text)

    def error(self, text: str) -> None:
        LOGGER.error("%s", text)


def _abandon(stream: TextIO) -> None:
    """Let the stream lead nowhere: Python flushes it once more at its end, and must not fail there."""
    with open(os.devnull, "w") as null, contextlib.suppress(OSError):  # noqa: PTH123
        os.dup2(null.fileno(), stream.fileno())


def _reserve(name: str) -> bool:
    """Return whether a standard stream was closed before ddpctl began, as by `>&-`.

    Then it becomes /dev/null: else the next file or connection would get its number.
    """
    closed = getattr(sys, name) is None
    if closed:
        setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115
    return closed


def table(
    rows: Sequence[Sequence[str]],
    head: Sequence[str],
    colours: Mapping[str, str] = _NO_COLOURS,
) -> str:
    """Plain columns, two spaces apart, as docker and kubectl print them.

    colours: the SGR colour of a cell, by its text.
    """
    cells = [[" ".join(plain(cell).split("\n")) for cell in row] for row in [head, *rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]

    def drawn(text: str, width: int) -> str:
        padded = text.ljust(width)
        return f"\x1b[{colours[text]}m{padded}\x1b[0m" if text in colours else padded

    return "\n".join("  ".join(map(drawn, row, widths)).rstrip() for row in cells)
