"""This machine, with the interface of a host behind SSH."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from ..errors import CommandFailed
from .account import home
from .stream import CHUNK, STDERR_TAIL, Stderr, Stream

STOP_TIMEOUT = 2.0  # seconds between SIGTERM and SIGKILL


class LocalMachine:
    """Starts commands on this machine in the home folder, like sshd."""

    def connect(self) -> None:
        pass

    def open(
        self,
        argv: Sequence[str],
        *,
        stdin: bool = True,
        stderr_limit: int | None = STDERR_TAIL,
        timeout: float | None = None,
    ) -> LocalStream:
        try:
            process = _start(argv, stdin=stdin)
        except FileNotFoundError:
            report = ["/bin/sh", "-c", 'echo "$0: not found" >&2; exit 127', argv[0]]
            process = _start(report, stdin=stdin)  # like a login shell
        except OSError as error:
            raise CommandFailed(f"local: cannot start {argv[0]}: {error.strerror}") from None
        return LocalStream(process, Stderr(stderr_limit))

    def close(self) -> None:
        pass


def _start(argv: Sequence[str], *, stdin: bool) -> subprocess.Popen[bytes]:
    folder = Path(home())
    return subprocess.Popen(
        argv,
        stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        cwd=folder if folder.is_dir() else "/",
        start_new_session=True,  # Ctrl-C must reach only the launcher
    )


class LocalStream(Stream):
    """A local command. Output pipes close with their last reader, which may be in another thread."""

    def __init__(self, process: subprocess.Popen[bytes], stderr: Stderr) -> None:
        assert process.stdout
        self.stderr = stderr
        self._process = process
        self._stdin = process.stdin
        self._stdin_lock = threading.Lock()
        self._stdout = process.stdout
        threading.Thread(target=_collect, args=(process, stderr), daemon=True).start()

    def read(self, size: int = CHUNK, timeout: float | None = None) -> bytes:
        if timeout is not None and not select.select([self._stdout], [], [], timeout)[0]:
            raise TimeoutError(f"no output for {timeout:g} s")
        return os.read(self._stdout.fileno(), size)

    def write(self, data: bytes | bytearray | memoryview, timeout: float | None = None) -> None:
        left = memoryview(data)
        while left:
            left = left[self._write_some(left, timeout) :]

    def _write_some(self, data: memoryview, timeout: float | None) -> int:
        with self._stdin_lock:
            if self._stdin is None or self._stdin.closed:
                raise BrokenPipeError("standard input is closed")
            if timeout is None:
                return os.write(self._stdin.fileno(), data)
            if not select.select([], [self._stdin], [], timeout)[1]:
                raise TimeoutError(f"nothing could be sent for {timeout:g} s")
            return os.write(self._stdin.fileno(), data[: select.PIPE_BUF])  # never blocks

    def close_stdin(self) -> None:
        with self._stdin_lock:
            if self._stdin:
                self._stdin.close()

    def wait(self, timeout: float | None = None) -> int:
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"still running after {timeout:g} s") from None
        return code if code >= 0 else 128 - code

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(STOP_TIMEOUT)
        if self._stdin_lock.acquire(timeout=STOP_TIMEOUT):  # a blocked write has failed by now
            try:
                if self._stdin:
                    self._stdin.close()
            finally:
                self._stdin_lock.release()


def _collect(process: subprocess.Popen[bytes], stderr: Stderr) -> None:
    assert process.stderr
    while chunk := os.read(process.stderr.fileno(), CHUNK):
        stderr.feed(chunk)
    stderr.close()
