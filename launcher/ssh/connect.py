"""Establish an authenticated connection to a host, and detect when the peer is gone."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import paramiko

from ..errors import HostUnreachable
from ..hosts import Host
from . import proxy
from .authenticate import authenticate
from .known_hosts import preferred_algorithms, verify
from .proxy import Dropped, Proxy
from .route import Route, jump_route, route_to
from .transport import Transport

logging.getLogger("paramiko").setLevel(logging.CRITICAL)  # its threads print tracebacks

TIMEOUT = 10.0  # seconds per step of a login, unless the SSH config has another value
AT_ONCE = 32  # number of hosts
LOGINS = 8  # concurrent logins through one server; sshd's default MaxStartups may drop the tenth
TRIES = 6
PAUSE = 0.25  # seconds before the second try; doubles with each further try
MAX_JUMPS = 8
ALIVE_INTERVAL = 5.0  # seconds of silence before a keepalive request
CLOSING_TIMEOUT = 1.0  # seconds; paramiko closes channels before it marks the transport inactive
BROKEN = (paramiko.SSHException, EOFError, OSError)  # raised by paramiko when a connection ends
_early: dict[Host, Future[Connection]] = {}
CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")  # paramiko's last choice, but fast


class Connection:
    def __init__(self, transport: Transport, route: Route, close_proxy: Callable[[], None]) -> None:
        self.transport = transport
        self.name = route.name
        self._close_proxy = close_proxy
        interval = min(route.alive_interval or ALIVE_INTERVAL, ALIVE_INTERVAL)
        self._silence_limit = interval * max(route.alive_count, 2)
        self._silent = False
        transport.ask_when_silent(interval)
        _watch(self)

    @property
    def is_active(self) -> bool:
        return self.transport.is_active()

    def is_ending(self) -> bool:
        """Return whether the connection has ended or is about to."""
        self.transport.join(CLOSING_TIMEOUT)
        return not self.transport.is_active()

    def lost(self) -> HostUnreachable:
        """Return the reason why the connection ended."""
        if self._silent:
            why = f"no reply for {self._silence_limit:g} s"
        else:
            why = str(self.transport.saved_exception or "") or "closed by the other side"
        return HostUnreachable(
            f"{self.name}: connection lost: {why}; check that the machine and its network are up"
        )

    def close(self) -> None:
        self.transport.close()
        self._close_proxy()

    def close_if_silent(self) -> None:
        if self.transport.seconds_silent() > self._silence_limit:
            self._silent = True
            # closing may block on a jump host that is silent as well
            threading.Thread(target=self.transport.close, daemon=True).start()


def connect(host: Host, *, timeout: float) -> Connection:
    """Connect and log in. Raises HostUnreachable with the remedy."""
    early = _early.pop(host, None)
    return early.result() if early else _connect(route_to(host), timeout)


def connect_early(hosts: Sequence[Host], *, timeout: float = TIMEOUT) -> None:
    """Log in in the background. A later `connect` returns or raises the result.

    The launch benchmark's bar requires this: Python loads the Docker SDK and other modules
    meanwhile.
    """

    def log_in(host: Host, connection: Future[Connection]) -> None:
        try:
            connection.set_result(_connect(route_to(host), timeout))
        except BaseException as error:
            connection.set_exception(error)

    for host in [*dict.fromkeys(hosts)][:AT_ONCE]:
        if not host.is_local:
            _early[host] = Future()
            threading.Thread(target=log_in, args=[host, _early[host]], daemon=True).start()


def _connect(route: Route, timeout: float) -> Connection:
    timeout = route.connect_timeout or timeout
    dropped = ""
    for attempt in range(TRIES):
        if attempt:
            time.sleep(PAUSE * 2 ** (attempt - 1) * random.uniform(0.7, 1.3))
        try:
            return _try_to_connect(route, timeout)
        except Dropped as drop:
            dropped = str(drop)
    raise HostUnreachable(
        f"{route.name}: sshd at {route.hostname}:{route.port} closed the connection before the login "
        f"{TRIES} times: {dropped}; check its MaxStartups and PerSourcePenalties, and whether a "
        "firewall or fail2ban blocks this machine"
    )


def _try_to_connect(route: Route, timeout: float) -> Connection:
    with contextlib.ExitStack() as on_failure:
        jump = _borrow_jump(route, timeout, on_failure)
        with _login_slot(route), _any_login:
            below = _open_proxy(route, jump, timeout)
            on_failure.callback(below.close)
            try:
                transport = _log_in(below.sock, route, timeout)
            except Dropped as drop:
                raise below.failure() or drop from None
        release = on_failure.pop_all()
    return Connection(transport, route, release.close)


def _open_proxy(route: Route, jump: Connection | None, timeout: float) -> Proxy:
    if jump:
        return proxy.through_jump(route, jump.transport, jump.name, timeout)
    if route.proxy_command:
        return proxy.through_command(route)
    return proxy.direct(route, timeout)


def _log_in(sock: Any, route: Route, timeout: float) -> Transport:
    """Exchange keys, check the host key, authenticate. Raises Dropped if the server hangs up."""
    transport = Transport(sock)
    transport.banner_timeout = timeout
    transport.handshake_timeout = timeout
    transport.auth_timeout = max(timeout, 20.0)  # PAM and LDAP may be slow
    options = transport.get_security_options()
    with contextlib.suppress(ValueError):  # paramiko before 3.5 has no GCM
        options.ciphers = (*CIPHERS, *(c for c in options.ciphers if c not in CIPHERS))
    options.key_types = preferred_algorithms(route, tuple(options.key_types))
    try:
        _exchange_keys(transport, route, timeout)
        verify(transport.get_remote_server_key(), route)
        authenticate(transport, route)
    except BaseException as error:
        transport.close()
        if isinstance(error, BROKEN):
            raise Dropped(str(error) or type(error).__name__) from None
        raise
    return transport


def _exchange_keys(transport: Transport, route: Route, timeout: float) -> None:
    where = f"{route.hostname}:{route.port}"
    start = time.monotonic()
    try:
        transport.start_client(timeout=2 * timeout)
        transport.get_remote_server_key()
    except paramiko.ssh_exception.IncompatiblePeer as error:
        raise HostUnreachable(
            f"{route.name}: its sshd and ddpctl have no algorithm in common: {error}; update OpenSSH there"
        ) from None
    except BROKEN as error:
        if time.monotonic() - start >= timeout:  # paramiko raises the same for late and hung up
            raise HostUnreachable(
                f"{route.name}: {where} accepts connections, but no sshd answers within "
                f"{timeout:g} s; check that the port is sshd's and the machine is not overloaded"
            ) from None
        if any(words in str(error) for words in ("Indecipherable", "Invalid SSH banner")):
            raise HostUnreachable(f"{route.name}: {where} is not sshd; fix the port") from None
        raise


# --- limit the concurrent logins on this machine and per server ----------------------------------

_any_login = threading.BoundedSemaphore(AT_ONCE)
_slots: dict[str, threading.BoundedSemaphore] = {}


def _login_slot(route: Route) -> threading.BoundedSemaphore:
    """Return the semaphore of the route: one per jump host, and one for all ProxyCommands."""
    bottleneck = route.proxy_jump or (route.proxy_command and "ProxyCommand")
    server = bottleneck or f"{route.hostname}:{route.port}"
    return _slots.setdefault(server, threading.BoundedSemaphore(LOGINS))


# --- one connection per jump host, shared by all hosts behind it ---------------------------------


@dataclass(eq=False)
class _Jump:
    connection: Future[Connection] = field(default_factory=Future)
    users: int = 0

    @property
    def is_broken(self) -> bool:
        if not self.connection.done():
            return False
        return bool(self.connection.exception()) or not self.connection.result().is_active


_jumps: dict[Route, _Jump] = {}
_jumps_lock = threading.Lock()


def _borrow_jump(route: Route, timeout: float, on_exit: contextlib.ExitStack) -> Connection | None:
    """Return the connection to the last jump host, shared until `on_exit` closes; None if none."""
    jump = jump_route(route)
    if jump is None:
        return None
    if jump.depth > MAX_JUMPS:
        raise HostUnreachable(
            f"{route.name}: ProxyJump goes in circles ({route.proxy_jump}); fix ~/.ssh/config"
        )
    try:
        return on_exit.enter_context(_shared(jump, timeout))
    except HostUnreachable as error:
        raise HostUnreachable(f"{route.name}: through jump host {error}") from None


@contextlib.contextmanager
def _shared(route: Route, timeout: float) -> Iterator[Connection]:
    """Share one connection: the first caller connects, the last one closes."""
    with _jumps_lock:
        jump = _jumps.get(route)
        is_first = jump is None or jump.is_broken
        if jump is None or is_first:
            jump = _jumps[route] = _Jump()
        jump.users += 1
    try:
        if is_first:
            try:
                jump.connection.set_result(_connect(route, timeout))
            except BaseException as error:
                jump.connection.set_exception(error)
        yield jump.connection.result()
    finally:
        with _jumps_lock:
            jump.users -= 1
            is_last = not jump.users
            if is_last and _jumps.get(route) is jump:
                del _jumps[route]
        if is_last and not jump.connection.exception():
            jump.connection.result().close()


# --- one thread watches all connections ----------------------------------------------------------
# A connection cannot watch itself: a write may block its thread.

_watched: list[Connection] = []
_watched_lock = threading.Lock()


def _watch(connection: Connection) -> None:
    with _watched_lock:
        _watched.append(connection)
        if len(_watched) == 1:
            threading.Thread(target=_watch_all, daemon=True, name="ssh-alive").start()


def _watch_all() -> None:
    while True:
        time.sleep(ALIVE_INTERVAL / 4)
        with _watched_lock:
            _watched[:] = [connection for connection in _watched if connection.is_active]
            if not _watched:
                return
            connections = list(_watched)
        for connection in connections:
            connection.close_if_silent()
