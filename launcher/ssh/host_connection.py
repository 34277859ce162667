"""The connection to one host: over SSH, or to this machine.

host = HostConnection(Host("gpu1.lab"))
host.run(["nvidia-smi", "-L"]).stdout
host.script('df -k "$1"', "/data").stdout
with host.open(["tail", "-c", "+1", "-F", path], stdin=False) as log:
    while chunk := log.read():
        ...
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from ..budget import Budget
from ..errors import CommandFailed, CommandTimeout, DdpctlError, UnusableAnswer
from ..hosts import Host
from ..own_folders import keep_traceback
from ..text import duration
from . import shell
from .background import in_background
from .local import LocalMachine
from .route import CONNECT_TIMEOUT
from .stream import Completed, Stream

if TYPE_CHECKING:
    from .client import SshMachine

R = TypeVar("R", bound="Resource")
SHORT_OUTPUT = 8_000_000  # bytes that a command may print
LONG_OUTPUT = 32_000_000  # bytes that a command may print if it prints a list
START_TIMEOUT = 30.0  # seconds within which a login shell must have started a command


class Resource(Protocol):
    """Something that uses a host's connection and is closed together with it."""

    def close(self) -> None: ...
    def explain(self, error: BaseException) -> DdpctlError | None:
        """Return a one-line error for an error of the resource's library; None for other errors."""


class HostConnection:
    """The connection to one host, opened on first use and then kept open. Thread-safe."""

    def __init__(self, host: Host, *, connect_timeout: float = CONNECT_TIMEOUT) -> None:
        self.host = host
        self.name = host.name
        self._machine: LocalMachine | SshMachine
        if host.is_local:
            self._machine = LocalMachine()
        else:
            from .client import SshMachine  # paramiko takes a while to load

            self._machine = SshMachine(host, connect_timeout=connect_timeout)
        self._resource: Resource | None = None
        self._resource_lock = threading.Lock()
        self._unusable: UnusableAnswer | None = None  # only the first, to limit the tracebacks kept

    def __repr__(self) -> str:
        return f"HostConnection({self.name})"

    def connect(self) -> None:
        """Connect, unless already connected. Raises HostUnreachable if that fails."""
        self._machine.connect()

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float = 30.0,
        limit: int = SHORT_OUTPUT,
        silence: float | None = None,
    ) -> Completed:
        """Run one command in the home folder, wait for it to end, and return its result.

        Raises CommandTimeout after `timeout` seconds, or after `silence` seconds without output, and
        CommandFailed if the command prints more than `limit` bytes; the command may then continue.
        Raises HostUnreachable if the connection is lost, and CommandFailed if the account cannot
        run commands.
        """
        budget = Budget(f"`{argv[0]}`", self.name, limit, timeout, silence=silence)

        def feed() -> None:  # the command may not read all of it; its exit code reports failures
            with contextlib.suppress(OSError, DdpctlError):
                stream.write(stdin)
                stream.close_stdin()

        try:
            start = timeout if silence is None else min(timeout, silence)
            with self._machine.open(argv, stdin=True, tty=None, timeout=start) as stream:
                if stdin:
                    in_background(feed)
                else:
                    stream.close_stdin()
                stdout = budget.read(stream)
                stderr = stream.stderr.read(budget.left() or 0.0)
                return Completed(stream.wait(budget.left()), stdout, stderr)
        except TimeoutError:
            raise budget.late() from None

    def script(
        self,
        text: str,
        *args: str,
        stdin: bytes = b"",
        timeout: float = 30.0,
        limit: int = SHORT_OUTPUT,
        silence: float | None = None,
    ) -> Completed:
        """Run a POSIX `sh` script with `args` as $1, $2, and so on, in the same way as `run`."""
        argv = shell.script(text, args)
        return self.run(argv, stdin=stdin, timeout=timeout, limit=limit, silence=silence)

    def open(self, argv: Sequence[str], *, stdin: bool = True, tty: bool | None = None) -> Stream:
        """Start one command and return its streams.

        With `stdin=False`, its standard input is empty, and the command is stopped when the stream
        closes or the connection breaks, so that no `tail -F` is left behind.

        tty: whether the command has a terminal. With None, it has none, and its stderr is collected
        instead of passed on. Raises CommandTimeout if the command does not start in time.
        """
        try:
            return self._machine.open(argv, stdin=stdin, tty=tty, timeout=START_TIMEOUT)
        except TimeoutError:
            raise CommandTimeout(
                f"the login shell did not start `{argv[0]}` within {duration(START_TIMEOUT)}",
                "check the shell's startup files (.bashrc) and the load on that machine",
                host=self.name,
            ) from None

    def open_script(
        self, text: str, *args: str, stdin: bool = True, tty: bool | None = None
    ) -> Stream:
        """Start a POSIX `sh` script and return its streams, as `open` does."""
        return self.open(shell.script(text, args), stdin=stdin, tty=tty)

    def resource(self, make: Callable[[], R]) -> R:
        """Return this connection's resource, which `make` creates on first use.

        It is closed together with the connection.
        """
        with self._resource_lock:
            self._resource = self._resource or make()
            return cast(R, self._resource)

    def explain(self, error: Exception) -> DdpctlError:
        """Return a one-line error for whatever went wrong with this host.

        An unexpected answer counts as this host's error, so that it does not end the command for
        the other hosts. It may also be a bug in ddpctl, so the traceback is kept.
        """
        if isinstance(error, DdpctlError):
            return error
        if self._resource and (explained := self._resource.explain(error)):
            return explained
        self._unusable = self._unusable or UnusableAnswer(
            f"ddpctl could not handle its answer ({keep_traceback(error)})",
            "check that host; if nothing is wrong there, report this as a bug",
            host=self.name,
        )
        return self._unusable

    def home(self) -> str:
        """Return the user's home folder on the host."""
        home = os.fsdecode(self.script('printf %s "$HOME"').stdout)
        if home.startswith("/"):
            return home
        raise CommandFailed(
            f"$HOME is `{home}`, which is not an absolute path",
            "give the account a home folder in that host's /etc/passwd",
            host=self.name,
        )

    def close(self) -> None:
        # without the lock, because another thread may hold it until the host answers: Ctrl-C must not wait
        resource, self._resource = self._resource, None
        if resource:
            resource.close()
        self._machine.close()


@contextlib.contextmanager
def connected(hosts: Iterable[Host]) -> Iterator[list[HostConnection]]:
    """Context manager: yield one connection per host, in order. All are closed at the end."""
    connections = [HostConnection(host) for host in hosts]
    try:
        yield connections
    finally:
        for connection in connections:
            connection.close()
