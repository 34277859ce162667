"""Establish an authenticated connection to a host, and detect when the peer is gone."""

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import paramiko

from ..errors import HostUnreachable
from ..hosts import Host
from ..text import duration
from . import link as proxy
from .authenticate import authenticate
from .background import in_background
from .connection import Transport
from .known_hosts import preferred_algorithms, verify
from .limits import AT_ONCE, CONNECT_TIMEOUT
from .link import Dropped
from .route import Route, jump_route, route_to

logging.getLogger("paramiko").setLevel(logging.CRITICAL)  # its threads print tracebacks

LOGINS = 8  # concurrent logins through one server; sshd's default MaxStartups may drop the tenth
TRIES = 6
PAUSE = 0.25  # seconds before the second try; doubles with each further try
MAX_JUMPS = 8
ALIVE_INTERVAL = 5.0  # seconds of silence before a keepalive request
CLOSING_TIMEOUT = 1.0  # seconds; paramiko closes channels before it marks the transport inactive
BROKEN = (paramiko.SSHException, EOFError, OSError)  # raised by paramiko when a connection ends
CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")  # fast, but last in paramiko's list


class Connection:
    def __init__(self, transport: Transport, route: Route, close_proxy: Callable[[], None]) -> None:
        self.transport = transport
        self.name = route.name
        self._close_proxy = close_proxy
        interval = min(route.alive_interval or ALIVE_INTERVAL, ALIVE_INTERVAL)
        self._silence_limit = interval * max(route.alive_count, 2)
        self._silent = False
        transport.ask_when_silent(interval)
        _watched.append(self)
        _start_to_watch()

    @property
    def is_active(self) -> bool:
        return self.transport.is_active()

    def is_ending(self) -> bool:
        """Return whether the connection has ended. If it is active, wait a moment first."""
        self.transport.join(CLOSING_TIMEOUT)
        return not self.is_active

    def lost(self) -> HostUnreachable:
        """Return an error that says why the connection ended."""
        why = str(self.transport.saved_exception or "") or "closed by the other side"
        if self._silent:
            why = f"no reply for {duration(self._silence_limit)}"
        remedy = "check that the machine and its network are up"
        return HostUnreachable(f"connection lost: {why}", remedy, host=self.name)

    def close(self) -> None:
        self.transport.close()
        self._close_proxy()

    def close_if_silent(self) -> None:
        if self.transport.seconds_silent() > self._silence_limit:
            self._silent = True
            # closing may block on a jump host that is silent as well
            threading.Thread(target=self.transport.close, daemon=True).start()


# One thread watches all connections. A connection cannot watch itself: a write may block its thread.
_watched: list[Connection] = []
_starting = threading.Lock()


def _start_to_watch() -> None:
    with _starting:
        if not _watcher.is_alive():
            _watcher.start()


def _watch() -> None:
    while True:
        time.sleep(ALIVE_INTERVAL / 4)
        for connection in [*_watched]:
            if connection.is_active:
                connection.close_if_silent()
            else:
                _watched.remove(connection)


_watcher = threading.Thread(target=_watch, daemon=True, name="ssh-alive")


_early: dict[Host, Future[Connection]] = {}


def connect(host: Host, *, timeout: float) -> Connection:
    """Connect and log in. Raises HostUnreachable with the remedy."""
    early = _early.pop(host, None)
    return early.result() if early else _connect_to(host, timeout)


def connect_early(hosts: Sequence[Host]) -> None:
    """Start to log in to hosts, in threads. A later `connect` returns or raises the result.

    Meanwhile, Python loads the Docker SDK and other modules. Without this, a launch takes longer
    than the launch benchmark allows.
    """
    for host in [host for host in dict.fromkeys(hosts) if not host.is_local][:AT_ONCE]:
        _early[host] = in_background(partial(_connect_to, host, CONNECT_TIMEOUT))


def _connect_to(host: Host, timeout: float) -> Connection:
    return _connect(route_to(host), timeout)


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
        except HostUnreachable as error:
            raise (error if error.host else error.on(route.name)) from None
    raise HostUnreachable(
        f"sshd{route.at} closed the connection {TRIES} times before the login: {dropped}",
        "check its MaxStartups and PerSourcePenalties, and whether a firewall or fail2ban blocks this "
        "machine",
        host=route.name,
    )


_any_login = threading.BoundedSemaphore(AT_ONCE)
_logins: dict[str, threading.BoundedSemaphore] = {}  # by jump host, ProxyCommand or server


def _try_to_connect(route: Route, timeout: float) -> Connection:
    bottleneck = route.proxy_jump or ("ProxyCommand" if route.proxy_command else route.where)
    login = _logins.setdefault(bottleneck, threading.BoundedSemaphore(LOGINS))
    with contextlib.ExitStack() as on_failure:
        jump = _borrow_jump(route, timeout, on_failure)
        with login, _any_login:
            if jump:
                below = proxy.through_jump(route, jump.transport, jump.name, timeout)
            elif route.proxy_command:
                below = proxy.through_command(route)
            else:
                below = proxy.direct(route, timeout)
            on_failure.callback(below.close)
            try:
                transport = _log_in(below.sock, route, timeout)
            except Dropped as drop:
                raise below.failure() or drop from None
        release = on_failure.pop_all()
    return Connection(transport, route, release.close)


def _log_in(sock: Any, route: Route, timeout: float) -> Transport:
    """Exchange keys, check the host key, authenticate. Raises Dropped if the server hangs up."""
    transport = Transport(sock)
    transport.banner_timeout = timeout
    transport.handshake_timeout = timeout
    transport.auth_timeout = max(timeout, 20.0)  # PAM and LDAP may be slow
    options = transport.get_security_options()
    with contextlib.suppress(ValueError):  # paramiko before 3.5 has no GCM
        options.ciphers = tuple(dict.fromkeys((*CIPHERS, *options.ciphers)))
    options.key_types = preferred_algorithms(route, options.key_types)
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
    start = time.monotonic()
    try:
        transport.start_client(timeout=2 * timeout)
        transport.get_remote_server_key()
    except paramiko.ssh_exception.IncompatiblePeer as error:
        raise HostUnreachable(
            f"its sshd and ddpctl have no algorithm in common: {error}",
            "update OpenSSH there",
        ) from None
    except BROKEN as error:
        if time.monotonic() - start >= timeout:  # paramiko raises the same for late and hung up
            raise HostUnreachable(
                f"it accepts connections{route.at}, but no sshd answered within {duration(timeout)}",
                "check that this is sshd's port and that the machine is not overloaded",
            ) from None
        if any(words in str(error) for words in ("Indecipherable", "Invalid SSH banner")):
            raise HostUnreachable(
                f"what answers{route.at} is not sshd", "correct its port"
            ) from None
        raise


# --- one connection per jump host, shared by all hosts behind it ---------------------------------


@dataclass(eq=False)
class _Jump:
    connection: Future[Connection]
    users: int = 0

    @property
    def is_broken(self) -> bool:
        if not self.connection.done():
            return False
        return bool(self.connection.exception()) or not self.connection.result().is_active


_jumps: dict[Route, _Jump] = {}
_jumps_lock = threading.Lock()


def _borrow_jump(route: Route, timeout: float, on_exit: contextlib.ExitStack) -> Connection | None:
    """Return the connection to the last jump host; None without one. `on_exit` gives it back."""
    jump = jump_route(route)
    if jump is None:
        return None
    if jump.depth > MAX_JUMPS:
        raise HostUnreachable(
            f"ProxyJump goes in circles ({route.proxy_jump})",
            "correct ~/.ssh/config",
        )
    try:
        return on_exit.enter_context(_shared(jump, timeout))
    except HostUnreachable as error:
        what = f"jump host {error.host}: {error.what}"
        raise HostUnreachable(what, error.remedy) from None


@contextlib.contextmanager
def _shared(route: Route, timeout: float) -> Iterator[Connection]:
    """Share one connection: the first caller connects, the last one closes."""
    with _jumps_lock:
        jump = _jumps.get(route)
        if jump is None or jump.is_broken:
            connection = in_background(partial(_connect, route, timeout))
            jump = _jumps[route] = _Jump(connection)
        jump.users += 1
    try:
        yield jump.connection.result()
    finally:
        with _jumps_lock:
            jump.users -= 1
            is_last = not jump.users
            if is_last and _jumps.get(route) is jump:
                del _jumps[route]
        if is_last:
            jump.connection.add_done_callback(_close)  # after Ctrl-C, it may still be connecting


def _close(connection: Future[Connection]) -> None:
    if not connection.exception():
        connection.result().close()
