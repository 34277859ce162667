"""This machine, with the same interface as one behind SSH."""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Sequence
from pathlib import Path

from launcher.errors import CommandFailed

from .stream import CHUNK, STDERR_TAIL, Stream

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
    )


class LocalStream(Stream):
    def __init__(self, process: subprocess.Popen[bytes], *, stderr_limit: int | None) -> None:
        super().__init__(stderr_limit=stderr_limit)
        assert process.stdout and process.stderr
        self._process = process
        self._stdout = process.stdout
        self._stderr_pipe = process.stderr
        self._drain.start()

    def read(self, size: int = CHUNK, timeout: float | None = None) -> bytes:
        if timeout is not None and not select.select([self._stdout], [], [], timeout)[0]:
            raise TimeoutError(f"nothing for {timeout:g} s")
        return os.read(self._stdout.fileno(), size)

    def write(self, data: bytes | bytearray | memoryview, timeout: float | None = None) -> None:
        if self._process.stdin is None or self._process.stdin.closed:
            raise BrokenPipeError("standard input is closed")
        left = memoryview(data)
        while left:
            if timeout is not None:
                if not select.select([], [self._process.stdin], [], timeout)[1]:
                    raise TimeoutError(f"nothing could be sent for {timeout:g} s")
                sent = os.write(self._process.stdin.fileno(), left[: select.PIPE_BUF])
            else:
                sent = os.write(self._process.stdin.fileno(), left)
            left = left[sent:]

    def close_stdin(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()

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
        for end in (self._process.terminate, self._process.kill):
            if self._process.poll() is None:
                end()
                try:
                    self._process.wait(GRACE)
                except subprocess.TimeoutExpired:
                    continue
        if not self._drain.is_alive():
            self._stderr_pipe.close()
        self._stdout.close()

    def _read_stderr(self) -> bytes:
        try:
            return os.read(self._stderr_pipe.fileno(), CHUNK)
        except (OSError, ValueError):  # closed under us
            return b""
