"""Where words go: results to stdout, ddpctl's own messages to stderr. One writer each."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

QUIET_BEFORE = 2.0  # seconds; a step that takes longer shows that it is under way


class Console:
    """quiet: errors only. verbose: details of each step too."""

    def __init__(self, *, quiet: bool = False, verbose: bool = False) -> None:
        self.quiet = quiet
        self.verbose = verbose
        self.stdout_closed = False
        self._lock = threading.Lock()

    def line(self, text: bytes) -> None:
        """One whole line of a result. A reader that has gone away is noticed once."""
        if self.stdout_closed:
            return
        try:
            sys.stdout.buffer.write(text)
        except BrokenPipeError:
            self._close_stdout()

    def flush(self) -> None:
        if self.stdout_closed:
            return
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            self._close_stdout()

    def json(self, document: dict[str, Any]) -> None:
        self.line(json.dumps(document, indent=2).encode() + b"\n")
        self.flush()

    def print(self, text: str) -> None:
        self.line(text.encode(errors="surrogateescape") + b"\n")
        self.flush()

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
            sys.stderr.write(text + "\n")
            sys.stderr.flush()

    def _close_stdout(self) -> None:
        self.stdout_closed = True
        # the interpreter flushes stdout once more at its end, and must not fail there
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
        self.say("nobody reads stdout any more; the logs are still recorded")


def table(rows: list[list[str]], head: list[str]) -> str:
    """Plain columns, two spaces between them, as docker and kubectl print them."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [head, *rows]
    )
    return "\n".join(lines)
