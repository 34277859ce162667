"""This machine, with the same interface as a host behind SSH, and the account that runs ddpctl."""

from __future__ import annotations

import contextlib
import errno
import os
import pty
import pwd
import select
import shutil
import signal
import subprocess
import termios
import threading
import weakref
from collections.abc import Sequence
from typing import IO

from ..errors import CommandFailed
from ..own_folders import expanded
from .background import in_background
from .stream import CHUNK, Stderr, Stream

CONTROL_TERMINAL = ("setsid", "--ctty")
CHILD_TIMEOUT = 2.0  # seconds for a child process to end after SIGTERM and after SIGKILL


def account_name() -> str:
    """Return the name of the account that runs ddpctl; if it has none, $USER or the uid."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return os.environ.get("USER", str(os.getuid()))


class LocalMachine:
    """Starts commands on this machine in the home folder, as sshd does.

    `close` stops commands that have no standard input or run on a terminal, as a disconnect would.
    """

    def __init__(self) -> None:
        self._watched: weakref.WeakSet[LocalStream] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._is_closed = False

    def connect(self) -> None:
        self._is_closed = False

    def open(self, argv: Sequence[str], *, stdin: bool, tty: bool | None, timeout: float) -> Stream:
        if stdin and not tty:
            return self._start(argv, stdin, tty)
        with self._lock:  # so that `close` also stops a command that is being started
            if self._is_closed:
                raise CommandFailed(
                    f"cannot start {argv[0]}: the connection has been closed",
                    "run the command again",
                    host="local",
                )
            stream = self._start(argv, stdin, tty)
            self._watched.add(stream)
        return stream

    def _start(self, argv: Sequence[str], stdin: bool, tty: bool | None) -> LocalStream:
        try:
            return LocalStream(argv, stdin, tty)
        except FileNotFoundError:  # fail as a login shell does
            missing = ["/bin/sh", "-c", 'echo "$0: not found" >&2; exit 127', argv[0]]
            return LocalStream(missing, stdin, tty)
        except OSError as error:
            raise CommandFailed(
                f"cannot start {argv[0]}: {error.strerror}",
                "check that the file is executable and that this machine is not overloaded",
                host="local",
            ) from None

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            streams = list(self._watched)
        for stream in streams:
            stream.close()


class LocalStream(Stream):
    """A local command. `close` leaves its output pipes open, because another thread may be reading them."""

    def __init__(self, argv: Sequence[str], stdin: bool, tty: bool | None) -> None:
        home = expanded("~")
        terminal, inside = pty.openpty() if tty else (-1, subprocess.PIPE)
        if tty:
            columns, rows = shutil.get_terminal_size()
            termios.tcsetwinsize(inside, (rows, columns))
        self._process = subprocess.Popen(
            [*(CONTROL_TERMINAL if tty else ()), *argv],
            stdin=inside if stdin else subprocess.DEVNULL,
            stdout=inside,
            stderr=inside,
            bufsize=0,
            cwd=home if home.is_dir() else "/",
            start_new_session=not tty,  # Ctrl-C must only reach the launcher
        )
        self.stderr = Stderr(ended=tty is not None)
        self._stdin, stdout = self._process.stdin, self._process.stdout
        if self._stdin:
            os.set_blocking(self._stdin.fileno(), False)  # `write` polls
        if tty:
            os.close(inside)
            self._stdin = os.fdopen(os.dup(terminal), "wb", 0)
            stdout = os.fdopen(terminal, "rb", 0)
        assert stdout
        self._stdout = stdout
        self._stdin_lock = threading.Lock()
        if tty is None:
            in_background(self._collect_stderr)

    def read(self, size: int = CHUNK, timeout: float | None = None) -> bytes:
        if timeout is not None and not _is_ready(self._stdout, select.POLLIN, timeout):
            raise TimeoutError(f"no output for {timeout:g} s")
        try:
            return os.read(self._stdout.fileno(), size)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return b""  # no process has the terminal open

    def read_stderr(self) -> bytes:
        stderr = self._process.stderr
        return os.read(stderr.fileno(), CHUNK) if stderr else b""

    def _collect_stderr(self) -> None:
        while chunk := self.read_stderr():
            self.stderr.feed(chunk)
        self.stderr.close()

    def write(self, data: bytes | bytearray | memoryview, timeout: float | None = None) -> None:
        left = memoryview(data)
        while left:
            with self._stdin_lock:
                if self._stdin is None or self._stdin.closed:
                    raise BrokenPipeError("standard input is closed")
                if not _is_ready(self._stdin, select.POLLOUT, timeout):
                    raise TimeoutError(f"nothing could be sent for {timeout:g} s")
                left = left[os.write(self._stdin.fileno(), left) :]

    def close_stdin(self) -> None:
        with self._stdin_lock:
            if self._stdin:
                self._stdin.close()

    def resize(self, rows: int, columns: int) -> None:
        if self._stdout.isatty():
            termios.tcsetwinsize(self._stdout, (rows, columns))

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
                    self._process.wait(CHILD_TIMEOUT)
        if self._stdin_lock.acquire(timeout=CHILD_TIMEOUT):  # a blocked write has failed by now
            try:
                if self._stdin:
                    self._stdin.close()
            finally:
                self._stdin_lock.release()


def _is_ready(file: IO[bytes], event: int, timeout: float | None) -> bool:
    """Wait for an event; return whether it came. select.select() fails for descriptors above 1023."""
    poll = select.poll()
    poll.register(file, event)
    return bool(poll.poll(None if timeout is None else 1000 * timeout))
