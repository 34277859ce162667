"""A command that runs beside a node of the process engine."""

import contextlib
import os
import pty
import selectors
import subprocess
import termios
from collections.abc import Iterator, Sequence
from typing import cast

from ..ssh.stream import CHUNK, Stream

CONTROL_TERMINAL = ("setsid", "--ctty")


class LocalExec:
    """On this machine. Satisfies launcher.engines.base.Exec."""

    def __init__(self, command: Sequence[str], *, stdin: bool, tty: bool) -> None:
        self._terminal: int | None
        self._terminal, inside = pty.openpty() if tty else (None, None)
        out = subprocess.PIPE if inside is None else inside
        self._process = subprocess.Popen(
            [*(() if inside is None else CONTROL_TERMINAL), *command],
            stdin=out if stdin or tty else subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            bufsize=0,
        )
        if inside is not None:
            os.close(inside)

    def output(self) -> Iterator[tuple[int, bytes]]:
        with selectors.DefaultSelector() as selector:
            outputs = (self._terminal, self._process.stdout, self._process.stderr)
            for number, output in enumerate([out for out in outputs if out is not None], 1):
                selector.register(output, selectors.EVENT_READ, number)
            while selector.get_map():
                for key, _ in selector.select():
                    data = b""
                    with contextlib.suppress(OSError):  # EIO: no process has the terminal open
                        data = os.read(key.fd, CHUNK)
                    if data:
                        yield cast(int, key.data), data
                    else:
                        selector.unregister(key.fileobj)

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        to = self._terminal
        if to is None and self._process.stdin:
            to = self._process.stdin.fileno()
        while to is not None and left:
            left = left[os.write(to, left) :]

    def close_stdin(self) -> None:
        if self._process.stdin:
            self._process.stdin.close()

    def resize(self, rows: int, columns: int) -> None:
        if self._terminal is not None:
            termios.tcsetwinsize(self._terminal, (rows, columns))

    def wait(self) -> int:
        code = self._process.wait()
        return code if code >= 0 else 128 - code


class RemoteExec:
    """On another host, without a terminal; all output is stdout. Satisfies launcher.engines.base.Exec."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.write, self.close_stdin, self.wait = stream.write, stream.close_stdin, stream.wait

    def output(self) -> Iterator[tuple[int, bytes]]:
        while data := self._stream.read():
            yield 1, data

    def resize(self, rows: int, columns: int) -> None:
        pass
