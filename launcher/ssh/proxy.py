"""The way to a server: a socket of our own, a ProxyCommand, or through jump hosts."""

from __future__ import annotations

import contextlib
import errno
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import paramiko

from launcher.errors import HostUnreachable
from launcher.ssh import config
from launcher.ssh.route import Route

if TYPE_CHECKING:
    from launcher.ssh.connect import Connection

MAX_JUMPS = 8

Policy = Literal["ask", "accept-new"]
Dial = Callable[[Route, Policy, float], "Connection"]


@dataclass(frozen=True)
class Way:
    """Something like a socket, and how to be rid of it."""

    sock: Any
    close: Callable[[], None]
    failure: Callable[[], HostUnreachable | None] = lambda: None  # the way's own, if it broke


def find_way(route: Route, policy: Policy, timeout: float, dial: Dial) -> Way:
    """A way to where sshd should listen; HostUnreachable says why there is none.

    `dial` makes the connection to a jump host.
    """
    if route.proxy_jump:
        return _through_jump(route, policy, timeout, dial)
    if route.proxy_command:
        return _through_command(route)
    sock = _connect(route, timeout)
    return Way(sock, sock.close)


def _connect(route: Route, timeout: float) -> socket.socket:
    """The first of the name's addresses that answers."""
    give_up = time.monotonic() + timeout
    addresses = _resolve(route, timeout)
    failure: OSError = TimeoutError()
    for left, (family, address) in zip(range(len(addresses), 0, -1), addresses, strict=True):
        share = max((give_up - time.monotonic()) / left, 0.1)
        try:
            return _connect_to(family, address, share, route.bind_address)
        except OSError as error:
            failure = error
    raise HostUnreachable(f"{route.name}: {_why_not(failure, route, timeout)}") from None


def _connect_to(family: int, address: Any, timeout: float, source: str | None) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout)
        if source:
            sock.bind((source, 0))
        sock.connect(address)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    except BaseException:
        sock.close()
        raise
    return sock


def _resolve(route: Route, timeout: float) -> list[tuple[int, Any]]:
    """The addresses of the host. A resolver knows no timeout, so it is left behind when late."""
    found: Future[Any] = Future()

    def ask() -> None:
        try:
            found.set_result(
                socket.getaddrinfo(
                    route.hostname, route.port, route.address_family, socket.SOCK_STREAM
                )
            )
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=ask, daemon=True, name="resolve").start()
    try:
        return [(family, address) for family, _, _, _, address in found.result(timeout)]
    except TimeoutError:
        raise HostUnreachable(
            f"{route.name}: the name {route.hostname} is not resolved within {timeout:g} s; look at "
            "this machine's DNS"
        ) from None
    except (socket.gaierror, UnicodeError) as error:
        why = error.strerror if isinstance(error, socket.gaierror) else error
        raise HostUnreachable(
            f"{route.name}: the name {route.hostname} does not resolve ({why}); mend the name in "
            "the hosts file, or add a HostName to ~/.ssh/config"
        ) from None


def _why_not(error: OSError, route: Route, timeout: float) -> str:
    where = f"{route.hostname}:{route.port}"
    if isinstance(error, ConnectionRefusedError):
        return f"connection refused at {where}; look whether sshd runs there and the port is right"
    if isinstance(error, TimeoutError):
        return (
            f"no answer from {where} within {timeout:g} s; look whether the machine is up and a "
            "firewall lets the port through"
        )
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL):
        return (
            f"no route to {where} ({error.strerror}); look at the network (VPN?), or set "
            "proxy_jump if a bastion leads there"
        )
    return f"cannot connect to {where}: {error.strerror or error}"


def _through_command(route: Route) -> Way:
    """ProxyCommand: its standard input and output are the connection."""
    ours, theirs = socket.socketpair()
    said = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the way)
    process = subprocess.Popen(
        ["sh", "-c", f"exec {route.proxy_command}"],
        stdin=theirs.fileno(),
        stdout=theirs.fileno(),
        stderr=said,
        start_new_session=True,
    )
    theirs.close()

    def close() -> None:
        ours.close()
        if process.poll() is None:
            process.terminate()
        process.wait()
        said.close()

    def failure() -> HostUnreachable | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
        if not process.poll():
            return None  # it runs, or ended in peace: sshd hung up, not the command
        said.seek(0)
        words = " ".join(said.read().decode(errors="replace").split()) or "it said nothing"
        return HostUnreachable(
            f"{route.name}: ProxyCommand `{route.proxy_command}` failed with exit code "
            f"{process.returncode}: {words[-300:]}; mend it in ~/.ssh/config"
        )

    return Way(ours, close, failure)


def _through_jump(route: Route, policy: Policy, timeout: float, dial: Dial) -> Way:
    jump_route = config.jump_before(route, policy)
    assert jump_route
    if jump_route.depth > MAX_JUMPS:
        raise HostUnreachable(
            f"{route.name}: ProxyJump goes round in circles ({route.proxy_jump}); mend ~/.ssh/config"
        )
    try:
        shared = _jumps.enter(jump_route, lambda: dial(jump_route, policy, timeout))
    except HostUnreachable as error:
        raise HostUnreachable(f"{route.name}: by way of jump host {error}") from None
    jump = shared.connection.result()
    try:
        channel = jump.transport.open_channel(
            "direct-tcpip", (route.hostname, route.port), ("127.0.0.1", 0), timeout=timeout
        )
    except (paramiko.SSHException, EOFError, OSError) as error:
        _jumps.leave(shared)
        raise HostUnreachable(
            f"{route.name}: jump host {jump.name} {_why_no_channel(error, route, timeout)}"
        ) from None

    def close() -> None:
        channel.close()
        _jumps.leave(shared)

    return Way(channel, close)


def _why_no_channel(error: BaseException, route: Route, timeout: float) -> str:
    where = f"{route.hostname}:{route.port}"
    if isinstance(error, paramiko.ChannelException):
        if error.code == 1:
            return f"may not forward to {where}; set `AllowTcpForwarding yes` in its sshd_config"
        return f"cannot reach {where} ({error.text}); look whether {where} is right as seen from it"
    if "Timeout" in str(error):
        return f"got no answer from {where} within {timeout:g} s; look whether that machine is up"
    return f"was lost on the way to {where}: {error or type(error).__name__}"


@dataclass(eq=False)
class _Shared:
    route: Route
    connection: Future[Connection]
    users: int


class _Jumps:
    """One connection to each jump host, for all that go through it: one handshake, not N."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shared: dict[Route, _Shared] = {}

    def enter(self, route: Route, dial: Callable[[], Connection]) -> _Shared:
        """A connection that is there, or is on its way, or is dialled now."""
        with self._lock:
            shared = self._shared.get(route)
            first = shared is None or _broken(shared)
            if shared is None or first:
                shared = self._shared[route] = _Shared(route, Future(), 0)
            shared.users += 1
        try:
            if first:
                _fulfil(shared.connection, dial)
            shared.connection.result()
        except BaseException:
            self.leave(shared)
            raise
        return shared

    def leave(self, shared: _Shared) -> None:
        """The last one out closes the door."""
        with self._lock:
            shared.users -= 1
            if shared.users > 0:
                return
            if self._shared.get(shared.route) is shared:
                del self._shared[shared.route]
        if not shared.connection.exception():
            shared.connection.result().close()


def _fulfil(future: Future[Connection], dial: Callable[[], Connection]) -> None:
    try:
        future.set_result(dial())
    except BaseException as error:
        future.set_exception(error)  # for all who wait for it


def _broken(shared: _Shared) -> bool:
    if not shared.connection.done():
        return False
    return bool(shared.connection.exception()) or not shared.connection.result().is_active


_jumps = _Jumps()
