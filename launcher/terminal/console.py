"""Write results to stdout and ddpctl's own messages to stderr."""

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
from typing import TYPE_CHECKING, Any, TextIO

from ..text import one_line, printable
from .sanitize import Sanitizer

if TYPE_CHECKING:
    from ..logs.fold_lines import Fold
    from .live import Live

QUIET_BEFORE = 2.0  # seconds; steps that take longer are announced
LOGGER = logging.getLogger("ddpctl")
LOGGER.addHandler(logging.NullHandler())  # otherwise Python prints logged errors to stderr


class Console:
    """quiet: errors only. verbose: also details of each step. plain: no live display.

    Files and pipes get log lines byte for byte. On a terminal, escape sequences other than colours
    are removed. If writing to stdout fails, this is reported once; the command goes on and returns
    its own exit code.
    """

    def __init__(self, *, quiet: bool = False, verbose: bool = False, plain: bool = False) -> None:
        self.quiet = quiet
        self.verbose = verbose
        self.plain = plain
        self.steps: list[tuple[str, float]] = []  # (name, seconds) of each step
        self.stdout_closed = _reserve("stdout")
        _reserve("stderr")
        self.fold: Fold | None = None  # if set, identical lines of many ranks are folded
        self.document_only = False  # stdout gets one JSON document and nothing else
        self._live: Live | None = None
        self._lock = threading.RLock()
        self._sanitizer = Sanitizer()

    def lines(self, text: bytes) -> None:
        """Print whole lines of a result."""
        if self.document_only:
            return
        if fold := self.fold:
            now = time.monotonic()
            lines = (line + b"\n" for line in text.split(b"\n")[:-1])
            text = b"".join(folded for line in lines for folded in fold.feed(line, now))
        self._write(text)

    def settle(self) -> None:
        """Print the lines that are held back for folding."""
        if self.fold:
            self._write(b"".join(self.fold.take_all()))
        self.flush()

    def flush(self) -> None:
        if self.fold:
            self._write(b"".join(self.fold.take_older(time.monotonic())))
        self._flush()

    @contextlib.contextmanager
    def live(self, display: Live) -> Iterator[None]:
        """Keep `display` at the bottom of the terminal, below all other output."""
        self.flush()
        self._live = display
        try:
            yield
        finally:
            with self._lock:
                self._live = None
                display.close()

    def json(self, document: dict[str, Any]) -> None:
        self._write(json.dumps(document, indent=2).encode() + b"\n")
        self._flush()

    def print(self, text: str) -> None:
        self.lines(text.encode(errors="surrogateescape") + b"\n")
        self.flush()

    def table(
        self,
        rows: Sequence[Sequence[str]],
        head: Sequence[str],
        colours: Mapping[str, str] | None = None,
    ) -> None:
        """Print a table. colours: SGR colour by cell text, used only on a terminal."""
        shown = self.on_terminal and not os.environ.get("NO_COLOR")
        self.print(table(rows, head, colours if shown else None))

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
        """Announce `text` if the step takes longer than QUIET_BEFORE. verbose: also print its duration."""
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
            if self._live and text:
                self._live.hide()
            if self.on_terminal:
                shown = self._sanitizer.feed(text)
                text = shown.encode(sys.stdout.encoding or "utf-8", errors="replace")
            self._try_stdout(lambda: sys.stdout.buffer.write(text))
            if self._live and self._live.due():  # lines may arrive without a pause
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
        except OSError as error:  # the reader has left, or the disk is full
            self.stdout_closed = True
            _abandon(sys.stdout)
            reason = "the reader closed it" if error.errno == errno.EPIPE else error.strerror
            self.say(f"nothing more is printed to stdout: {reason}")

    def _stderr(self, text: str) -> None:
        with self._lock:
            if self._live:
                self._live.hide()
                self._try_stdout(lambda: sys.stdout.flush())  # earlier output comes first
            try:
                sys.stderr.write(printable(text) + "\n")
                sys.stderr.flush()
            except OSError:
                _abandon(sys.stderr)


class LoggingConsole(Console):
    """Prints nothing, for use from Python. Messages for stderr are logged as ERROR, INFO or DEBUG."""

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
    """Redirect the stream to /dev/null, because Python flushes it at exit and must not fail there."""
    with open(os.devnull, "w") as null, contextlib.suppress(OSError):  # noqa: PTH123
        os.dup2(null.fileno(), stream.fileno())


def _reserve(name: str) -> bool:
    """Replace a standard stream by /dev/null if it was closed before ddpctl started (`>&-`).

    Otherwise the next file or connection would get its descriptor. Return whether it was closed.
    """
    closed = getattr(sys, name) is None
    if closed:
        setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115
    return closed


def table(
    rows: Sequence[Sequence[str]], head: Sequence[str], colours: Mapping[str, str] | None = None
) -> str:
    """Format plain columns, two spaces apart, like docker. colours: SGR colour by cell text."""
    cells = [[one_line(cell) for cell in row] for row in [head, *rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]

    def drawn(text: str, width: int) -> str:
        colour = (colours or {}).get(text)
        return f"\x1b[{colour}m{text:{width}}\x1b[0m" if colour else f"{text:{width}}"

    return "\n".join("  ".join(map(drawn, row, widths)).rstrip() for row in cells)
