"""This machine, with the same interface as one behind SSH."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from launcher.errors import CommandFailed
from launcher.ssh.stream import CHUNK, STDERR_TAIL, Stream

GRACE = 2.0  # seconds between asking a process to end and ending it


class LocalMachine:
    """Starts commands here, in the home folder, as sshd would."""

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
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd=Path.home(),
                start_new_session=True,  # Ctrl-C is the launcher's to hear
            )
        except FileNotFoundError:
            return LocalStream(_not_found(argv[0]), stderr_limit=stderr_limit)
        except OSError as error:
            raise CommandFailed(f"local: cannot start {argv[0]}: {error.strerror}") from None
        return LocalStream(process, stderr_limit=stderr_limit)

    def close(self) -> None:
        pass


def _not_found(name: str) -> subprocess.Popen[bytes]:
    """Exit code 127 and a word about it, as a login shell would have it."""
    return subprocess.Popen(
        ["sh", "-c", 'echo "$0: not found" >&2; exit 127', name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    )


class LocalStream(Stream):
    def __init__(self, process: subprocess.Popen[bytes], *, stderr_limit: int | None) -> None:
        super().__init__(stderr_limit=stderr_limit)
        assert process.stdout and process.stderr
        self._process = process
        self._stdin = _Pipe(process.stdin) if process.stdin else None
        self._stdout = _Pipe(process.stdout)
        self._stderr_pipe = _Pipe(process.stderr)
        self._drain.start()

    def read(self, size: int = CHUNK, timeout: float | None = None) -> bytes:
        with self._stdout.use() as pipe:
            if pipe is None:
                return b""
            if timeout is not None and not select.select([pipe], [], [], timeout)[0]:
                raise TimeoutError(f"nothing for {timeout:g} s")
            return os.read(pipe, size)

    def write(self, data: bytes | bytearray | memoryview, timeout: float | None = None) -> None:
        left = memoryview(data)
        while left:
            left = left[self._write_some(left, timeout) :]

    def _write_some(self, data: memoryview, timeout: float | None) -> int:
        if self._stdin is None:
            raise BrokenPipeError("standard input is closed")
        with self._stdin.use() as pipe:
            if pipe is None:
                raise BrokenPipeError("standard input is closed")
            if timeout is None:
                return os.write(pipe, data)
            if not select.select([], [pipe], [], timeout)[1]:
                raise TimeoutError(f"nothing could be sent for {timeout:g} s")
            return os.write(pipe, data[: select.PIPE_BUF])  # as much as never blocks

    def close_stdin(self) -> None:
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
        self.close_stdin()
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(GRACE)
        self._stdout.close()
        self._stderr_pipe.close()

    def _read_stderr(self) -> bytes:
        with self._stderr_pipe.use() as pipe:
            return b"" if pipe is None else os.read(pipe, CHUNK)


class _Pipe:
    """One end of a pipe that is only closed when no thread is in the middle of using it.

    Else its number might be another file's by the time the thread gets to it.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._users = 0
        self._closing = False

    @contextlib.contextmanager
    def use(self) -> Iterator[int | None]:
        """The file descriptor, or None when it is closed."""
        with self._lock:
            if self._closing:
                number = None
            else:
                number = self._file.fileno()
                self._users += 1
        try:
            yield number
        finally:
            if number is not None:
                with self._lock:
                    self._users -= 1
                    self._close_if_done()

    def close(self) -> None:
        with self._lock:
            self._closing = True
            self._close_if_done()

    def _close_if_done(self) -> None:
        if self._closing and not self._users:
            self._file.close()
