"""Open an authenticated connection to a host."""

import contextlib
import logging
import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from ..errors import HostUnreachable
from ..hosts import Host
from ..text import duration
from . import recently_silent
from .authenticate import authenticate
from .background import AT_ONCE, in_background
from .connection import BROKEN, Connection
from .known_hosts import preferred_algorithms, verify
from .lean_paramiko import paramiko
from .link import Dropped, Link
from .open_link import open_link
from .route import CONNECT_TIMEOUT, Route, jump_route, route_to

logging.getLogger("paramiko").setLevel(logging.CRITICAL)  # its threads print tracebacks

LOGINS = 8  # concurrent logins through one server; sshd's default MaxStartups may drop the tenth
TRIES = 6
PAUSE = 0.25  # seconds before the second try; doubled for each further try
CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")  # fast, but last in paramiko's list

_early: dict[Host, Future[Connection]] = {}


class LoginsDropped(HostUnreachable):
    """Raised if sshd closed each connection before the login, as a busy sshd does at random."""


def connect(host: Host, timeout: float) -> Connection:
    """Connect to `host`, log in, and return the connection. Raises HostUnreachable if that fails.

    If the host did not answer a moment ago, raises that error again instead (see `recently_silent`).
    """
    if early := _early.pop(host, None):
        return early.result()
    recently_silent.raise_if_silent(host)
    return _connect_to(host, timeout)


def connect_early(hosts: Sequence[Host]) -> None:
    """Start logging in to the first AT_ONCE remote hosts, in threads.

    A later `connect` returns the connection or raises the error. In the meantime, Python loads the
    Docker SDK and other modules. Otherwise, a launch would take longer than the launch benchmark
    allows.
    """
    for host in [host for host in dict.fromkeys(hosts) if not host.is_local][:AT_ONCE]:
        _early[host] = in_background(_connect_to, host, CONNECT_TIMEOUT)


def _connect_to(host: Host, timeout: float) -> Connection:
    began = time.monotonic()
    try:
        connection = _connect(route_to(host, timeout))
    except LoginsDropped:  # the next try may succeed
        raise
    except HostUnreachable as error:
        recently_silent.remember(host, error, time.monotonic() - began)
        raise
    recently_silent.forget(host)
    return connection


def _connect(route: Route) -> Connection:
    dropped = ""
    for attempt in range(TRIES):
        if attempt:
            time.sleep(PAUSE * 2 ** (attempt - 1) * random.uniform(0.7, 1.3))
        try:
            return _try_to_connect(route)
        except Dropped as drop:
            dropped = str(drop)
        except HostUnreachable as error:
            raise (error if error.host else error.on(route.host.name)) from None
    raise LoginsDropped(
        f"sshd{route.at} closed the connection {TRIES} times before the login: {dropped}",
        "check MaxStartups and PerSourcePenalties in its sshd_config, and whether a firewall or "
        "fail2ban is blocking this machine",
        host=route.host.name,
    )


_any_login = threading.BoundedSemaphore(AT_ONCE)
_logins: dict[str, threading.BoundedSemaphore] = {}  # by jump host, ProxyCommand or server


def _try_to_connect(route: Route) -> Connection:
    bottleneck = route.proxy_jump or (
        "ProxyCommand" if route.proxy_command else f"{route.hostname}:{route.port}"
    )
    login = _logins.setdefault(bottleneck, threading.BoundedSemaphore(LOGINS))
    with contextlib.ExitStack() as on_failure:
        jump = on_failure.enter_context(_shared_jump(route))
        with login, _any_login:
            link = open_link(route, jump)
            on_failure.callback(link.release)
            try:
                connection = _log_in(link, route)
            except Dropped as drop:
                raise link.failure() or drop from None
        connection.on_close = on_failure.pop_all()
        return connection


def _log_in(link: Link, route: Route) -> Connection:
    """Exchange keys, check the host key and authenticate. Return the connection.

    Raises Dropped if the server hangs up.
    """
    connection = Connection(link, route.host.name)
    options = connection.get_security_options()
    options.ciphers = tuple(dict.fromkeys((*CIPHERS, *options.ciphers)))
    options.key_types = preferred_algorithms(route, options.key_types)
    try:
        _exchange_keys(connection, route)
        verify(connection.get_remote_server_key(), route)
        authenticate(connection, route)
        connection.keep_alive(route.alive_interval, route.alive_count)
        connection.open_ahead(route.connect_timeout)
    except BaseException as error:
        connection.close()
        if isinstance(error, BROKEN):
            raise Dropped(str(error) or type(error).__name__) from None
        raise
    return connection


def _exchange_keys(connection: Connection, route: Route) -> None:
    timeout = connection.banner_timeout = connection.handshake_timeout = route.connect_timeout
    start = time.monotonic()
    try:
        connection.start_client(timeout=2 * timeout)
        connection.get_remote_server_key()
    except paramiko.ssh_exception.IncompatiblePeer as error:
        raise HostUnreachable(
            f"its sshd and ddpctl have no algorithm in common: {error}",
            "update OpenSSH on that host",
        ) from None
    except BROKEN as error:
        if time.monotonic() - start >= timeout:  # paramiko's error is the same if sshd hung up
            raise HostUnreachable(
                f"it accepts connections{route.at}, but no sshd answered within "
                f"{duration(timeout)}",
                "check that this is sshd's port and that the machine is not overloaded",
            ) from None
        if any(words in str(error) for words in ("Indecipherable", "Invalid SSH banner")):
            what = f"the server that answered{route.at} is not an SSH server"
            raise HostUnreachable(
                what, "correct its port in the hosts file or in ~/.ssh/config"
            ) from None
        raise


@dataclass(eq=False)
class _Jump:
    """A connection to a jump host, shared by the hosts behind it."""

    connection: Future[Connection]
    users: int = 0

    @property
    def is_broken(self) -> bool:
        if not self.connection.done():
            return False
        return bool(self.connection.exception()) or not self.connection.result().is_active()


_jumps: dict[Route, _Jump] = {}
_jumps_lock = threading.Lock()


@contextlib.contextmanager
def _shared_jump(route: Route) -> Iterator[Connection | None]:
    """Context manager: yield the connection to the last jump host; None if there is no jump host.

    The first host that needs the connection opens it, and the last one closes it.
    """
    via = jump_route(route)
    if via is None:
        yield None
        return
    with _jumps_lock:
        jump = _jumps.get(via)
        if jump is None or jump.is_broken:
            jump = _jumps[via] = _Jump(in_background(_connect, via))
        jump.users += 1
    try:
        yield _result_of(jump.connection)
    finally:
        with _jumps_lock:
            jump.users -= 1
            is_last = not jump.users
            if is_last and _jumps.get(via) is jump:
                del _jumps[via]
        if is_last:
            jump.connection.add_done_callback(_close)  # after Ctrl-C, it may still be connecting


def _result_of(jump: Future[Connection]) -> Connection:
    try:
        return jump.result()
    except HostUnreachable as error:
        raise HostUnreachable(f"jump host {error.host}: {error.what}", error.remedy) from None


def _close(connection: Future[Connection]) -> None:
    if not connection.exception():
        connection.result().close()
