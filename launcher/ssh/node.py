"""Node: one machine, reached by SSH or this one; each_node, ask_each: many at once.

node = Node(Host("gpu1.lab"))
node.run(["nvidia-smi", "-L"]).stdout
with node.open(["tail", "-c", "+1", "-F", path], stdin=False) as log:
    while chunk := log.read():
        ...
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol, TypeVar, cast

from launcher.errors import CommandTimeout, DdpctlError, NodesFailed
from launcher.hosts import Host
from launcher.ssh.client import SshMachine
from launcher.ssh.local import LocalMachine
from launcher.ssh.shell import with_environment
from launcher.ssh.stream import CHUNK, STDERR_TAIL, Completed, Deadline, Stream

T = TypeVar("T")
R = TypeVar("R", bound="Resource")
AT_ONCE = 32  # nodes
START_TIMEOUT = 30.0  # seconds for a login shell to start a command
_NOTHING: Mapping[str, str] = MappingProxyType({})

__all__ = ["Completed", "Node", "Stream", "ask_each", "connected", "each_node", "try_each"]


class Machine(Protocol):
    """What SSH and this machine have in common."""

    def connect(self) -> None: ...
    def open(
        self,
        argv: Sequence[str],
        *,
        stdin: bool = True,
        stderr_limit: int | None = STDERR_TAIL,
        timeout: float | None = None,
    ) -> Stream:
        """Start a command; TimeoutError if it has not started after `timeout` seconds."""
        ...

    def close(self) -> None: ...


class Resource(Protocol):
    """Something that uses a node's connection, and closes with it."""

    def close(self) -> None: ...
    def explain(self, error: BaseException) -> DdpctlError | None:
        """An error of this resource's library as one line; None when it is another's."""


class Node:
    """One machine. Connects on first use, then keeps the connection; safe in many threads."""

    def __init__(self, host: Host, *, connect_timeout: float = 10.0) -> None:
        self.host = host
        self.name = host.name
        self._machine = _machine(host, connect_timeout)
        self._resources: dict[type[Resource], Resource] = {}
        self._resources_lock = threading.Lock()
        self._home: str | None = None

    def __repr__(self) -> str:
        return f"Node({self.name})"

    def connect(self) -> None:
        """HostUnreachable, in one line with the remedy, when it cannot be."""
        self._machine.connect()

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float = 30.0,
        env: Mapping[str, str] = _NOTHING,
    ) -> Completed:
        """Runs one command to its end, in the home folder.

        `env` is added to its environment and never shown in a process list. CommandTimeout after
        `timeout` seconds, HostUnreachable when the connection does not last that long.
        """
        if env:
            argv, preamble = with_environment(argv, env)
            stdin = preamble + stdin
        deadline = Deadline(timeout)
        stream = None
        try:
            stream = self._machine.open(argv, stderr_limit=None, timeout=timeout)
            if stdin:
                threading.Thread(target=_feed, args=(stream, stdin), daemon=True).start()
            else:
                stream.close_stdin()
            stdout = bytearray()
            while chunk := stream.read(CHUNK, deadline.left()):
                stdout += chunk
            stderr = stream.stderr_all(deadline.left() or 0.0)
            return Completed(stream.wait(deadline.left()), bytes(stdout), stderr)
        except TimeoutError:
            raise CommandTimeout(
                f"{self.name}: `{argv[0]}` did not end within {timeout:g} s; "
                "look whether the machine or one of its disks hangs"
            ) from None
        finally:
            if stream:
                stream.close()

    def script(
        self,
        text: str,
        *args: str,
        stdin: bytes = b"",
        timeout: float = 30.0,
        env: Mapping[str, str] = _NOTHING,
    ) -> Completed:
        """Run a POSIX `sh` script, `args` being its $1, $2, and so on. Otherwise like `run`."""
        return self.run(_script(text, args), stdin=stdin, timeout=timeout, env=env)

    def open_script(self, text: str, *args: str, stdin: bool = True) -> Stream:
        """Start a POSIX `sh` script and return its streams, like `open`."""
        return self.open(_script(text, args), stdin=stdin)

    def open(self, argv: Sequence[str], *, stdin: bool = True) -> Stream:
        """Starts one command and hands over its streams.

        With `stdin=False` it reads nothing and is ended when the stream closes or the connection
        breaks, so that a `tail -F` never stays behind.
        """
        try:
            return self._machine.open(argv, stdin=stdin, timeout=START_TIMEOUT)
        except TimeoutError:
            raise CommandTimeout(
                f"{self.name}: the login shell did not start `{argv[0]}` within "
                f"{START_TIMEOUT:g} s; check its startup files (.bashrc) and the load of the machine"
            ) from None

    @property
    def is_local(self) -> bool:
        """Whether it is this machine, reached without SSH."""
        return self.host.is_local

    def resource(self, kind: type[R], make: Callable[[], R]) -> R:
        """This node's one `kind`: made on first use, closed with the node."""
        with self._resources_lock:
            if kind not in self._resources:
                self._resources[kind] = make()
            return cast(R, self._resources[kind])

    def explain(self, error: BaseException) -> DdpctlError | None:
        """An error of one of its resources as one line; None when it is none of theirs."""
        explained = (resource.explain(error) for resource in self._resources.values())
        return next((line for line in explained if line), None)

    def home(self) -> str:
        """The home folder of the user there."""
        if self._home is None:
            self._home = self.script('printf %s "$HOME"').stdout.decode()
        return self._home

    def close(self) -> None:
        with self._resources_lock:
            resources, self._resources = self._resources, {}
        for resource in resources.values():
            resource.close()
        self._machine.close()


@contextlib.contextmanager
def connected(hosts: Iterable[Host]) -> Iterator[list[Node]]:
    """One Node per host, in order. Each connects on first use; all close at the end."""
    nodes = [Node(host) for host in hosts]
    try:
        yield nodes
    finally:
        for node in nodes:
            node.close()


def each_node(nodes: Sequence[Node], do: Callable[[Node], T]) -> dict[Node, T]:
    """`do` for every node at once, where one failure spoils all. NodesFailed carries every error."""
    results, failures = try_each(nodes, do)
    if failures:
        raise NodesFailed(_by(_unique_names(nodes), failures))
    return results


def ask_each(
    nodes: Sequence[Node], ask: Callable[[Node], T]
) -> tuple[dict[str, T], dict[str, DdpctlError]]:
    """`ask` of every node at once: the answers, and the errors of those that could not be seen, both
    by host name. A name that stands twice in `nodes` is told apart as `name (2)`."""
    names = _unique_names(nodes)
    answers, failures = try_each(nodes, ask)
    return _by(names, answers), _by(names, failures)


def try_each(
    nodes: Sequence[Node], do: Callable[[Node], T]
) -> tuple[dict[Node, T], dict[Node, DdpctlError]]:
    """`do` for every node at once, at most AT_ONCE at a time, waiting for all of them: what it gave
    where it succeeded, and the errors of the others."""
    results: dict[Node, T] = {}
    errors: dict[Node, BaseException] = {}
    todo = list(reversed(nodes))

    def work() -> None:
        while True:
            try:
                node = todo.pop()
            except IndexError:
                return
            try:
                results[node] = do(node)
            except BaseException as error:
                errors[node] = error

    threads = [
        threading.Thread(target=work, daemon=True, name="node")
        for _ in range(min(AT_ONCE, len(nodes)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failures = {node: _one_line(node, errors[node]) for node in nodes if node in errors}
    return {node: results[node] for node in nodes if node in results}, failures


def one_per_account(nodes: Iterable[Node]) -> list[Node]:
    """The first node of each account: two nodes may be one user on one machine."""
    found: dict[tuple[str | None, str, int], Node] = {}
    for node in nodes:
        found.setdefault(node.host.account, node)
    return [*found.values()]


def _by(names: Mapping[Node, str], found: Mapping[Node, T]) -> dict[str, T]:
    return {names[node]: value for node, value in found.items()}


def _one_line(node: Node, error: BaseException) -> DdpctlError:
    """The error as the user's; what is a bug of ours is raised as it is."""
    if isinstance(error, DdpctlError):
        return error
    if explained := node.explain(error):
        return explained
    raise error


def _unique_names(nodes: Sequence[Node]) -> dict[Node, str]:
    seen: dict[str, int] = {}
    names = {}
    for node in nodes:
        seen[node.name] = count = seen.get(node.name, 0) + 1
        names[node] = node.name if count == 1 else f"{node.name} ({count})"
    return names


def _machine(host: Host, connect_timeout: float) -> Machine:
    if host.is_local:
        return LocalMachine()
    return SshMachine(host, connect_timeout=connect_timeout)


def _script(text: str, args: Sequence[str]) -> list[str]:
    return ["sh", "-c", text, "sh", *args]


def _feed(stream: Stream, data: bytes) -> None:
    """A command need not read what it is told: then it ends, and its exit code tells."""
    with contextlib.suppress(OSError, DdpctlError):
        stream.write(data)
        stream.close_stdin()
