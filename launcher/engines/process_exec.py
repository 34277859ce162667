"""A command beside a node that is a process of this machine."""

from __future__ import annotations

import contextlib
import os
import pty
import selectors
import subprocess
import termios
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from ..ssh.stream import CHUNK

RUN = ("sh", "-c", 'exec "$@"', "sh")  # reports a missing command as a shell does, with 127


class LocalExec:
    """Satisfies launcher.engines.base.Exec."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        stdin: bool,
        tty: bool,
    ) -> None:
        self._terminal: int | None = None
        argv = [*RUN, *command]
        if not tty:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=env,
                cwd=cwd,
            )
            return
        self._terminal, inside = pty.openpty()
        self._process = subprocess.Popen(
            ["setsid", "--ctty", *argv],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            env=env,
            cwd=cwd,
        )
        os.close(inside)

    def output(self) -> Iterator[tuple[int, bytes]]:
        if self._terminal is not None:
            with contextlib.suppress(OSError):  # EIO: the last process has closed the terminal
                while data := os.read(self._terminal, CHUNK):
                    yield 1, data
            return
        with selectors.DefaultSelector() as selector:
            for number, pipe in ((1, self._process.stdout), (2, self._process.stderr)):
                if pipe:
                    selector.register(pipe, selectors.EVENT_READ, number)
            while selector.get_map():
                for key, _ in selector.select():
                    if data := os.read(key.fd, CHUNK):
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
