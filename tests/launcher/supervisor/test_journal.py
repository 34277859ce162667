"""The copy of the journal's lines for the engine's log."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from launcher.supervisor.journal import STDOUT_BACKLOG, Journal


@contextlib.contextmanager
def engine_log() -> Iterator[int]:
    """Context manager: this process's stdout is a pipe. Yield the end to read from."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    stdout = os.dup(1)
    os.dup2(writer, 1)
    try:
        yield reader
    finally:
        os.dup2(stdout, 1)
        for descriptor in (reader, writer, stdout):
            os.close(descriptor)


def test_an_engine_that_had_stopped_reading_gets_the_later_lines(tmp_path: Path) -> None:
    read = b""
    with engine_log() as log:
        journal = Journal(str(tmp_path), "gpu1")
        journal.write_lines(b"0", (b"x" * 99 + b"\n") * (2 * STDOUT_BACKLOG // 100))
        for _ in range(100):
            with contextlib.suppress(BlockingIOError):
                while data := os.read(log, 1 << 20):
                    read += data
            journal.write_lines(b"0", b"after\n")
    assert set(read.splitlines()) == {b"[gpu1:0] " + b"x" * 99, b"[gpu1:0] after"}
