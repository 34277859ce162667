"""From a host to an authenticated connection."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import paramiko

from ..errors import HostUnreachable
from ..hosts import Host
from . import config, proxy
from .authenticate import authenticate
from .connection import BROKEN, Connection
from .host_key import preferred_algorithms, verify
from .proxy import Dropped, Proxy
from .route import Route
from .transport import Transport

logging.getLogger("paramiko").setLevel(logging.CRITICAL)  # it prints tracebacks from its threads

AT_ONCE = 32  # hosts
LOGINS = 8  # at once through one server: sshd's default MaxStartups may drop the tenth
TRIES = 6
PAUSE = 0.25  # seconds before the second try, doubled for each further one
MAX_JUMPS = 8
CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")  # paramiko's last choice, but fast


def connect(host: Host, *, timeout: float) -> Connection:
    """Connect and log in. HostUnreachable, one line with the remedy, if that fails."""
    return _connect(config.route_to(host), timeout)


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
        f"{route.name}: sshd at {route.hostname}:{route.port} hangs up before the login, "
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
        channel = proxy.through_jump(route, jump.transport, jump.name, timeout)
        return Proxy(channel, channel.close)
    if route.proxy_command:
        return proxy.through_command(route)
    return proxy.direct(route, timeout)


def _log_in(sock: Any, route: Route, timeout: float) -> Transport:
    """Key exchange, check of the host key, authentication. Dropped if the server hangs up."""
    transport = Transport(sock)
    transport.banner_timeout = timeout
    transport.handshake_timeout = timeout
    transport.auth_timeout = max(timeout, 20.0)  # PAM and LDAP may be slow
    options = transport.get_security_options()
    with contextlib.suppress(ValueError):  # paramiko older than 3.5 has no GCM
        options.ciphers = (*CIPHERS, *(c for c in options.ciphers if c not in CIPHERS))
    options.key_types = preferred_algorithms(route, tuple(options.key_types))
    try:
        _exchange_keys(transport, route, timeout)
        verify(transport.get_remote_server_key(), route)
        authenticate(transport, route)
    except BROKEN as error:
        transport.close()
        raise Dropped(str(error) or type(error).__name__) from None
    except BaseException:
        transport.close()
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
            f"{route.name}: its sshd shares no algorithm with ddpctl: {error}; update OpenSSH there"
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


# --- no more logins at once than this machine and one server accept ------------------------------

_any_login = threading.BoundedSemaphore(AT_ONCE)
_slots: dict[str, threading.BoundedSemaphore] = {}


def _login_slot(route: Route) -> threading.BoundedSemaphore:
    """All logins through one jump host share its slots, and all through a ProxyCommand theirs."""
    bottleneck = route.proxy_jump or (route.proxy_command and "ProxyCommand")
    server = bottleneck or f"{route.hostname}:{route.port}"
    return _slots.setdefault(server, threading.BoundedSemaphore(LOGINS))


# --- one connection to each jump host, for all hosts behind it -----------------------------------


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
    """The connection to the last jump host, shared until `on_exit` closes; None without one."""
    jump_route = config.jump_route(route)
    if jump_route is None:
        return None
    if jump_route.depth > MAX_JUMPS:
        raise HostUnreachable(
            f"{route.name}: ProxyJump goes in circles ({route.proxy_jump}); fix ~/.ssh/config"
        )
    try:
        return on_exit.enter_context(_shared(jump_route, timeout))
    except HostUnreachable as error:
        raise HostUnreachable(f"{route.name}: through jump host {error}") from None


@contextlib.contextmanager
def _shared(route: Route, timeout: float) -> Iterator[Connection]:
    """The first caller connects and all others wait for it; the last one to leave closes it."""
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
