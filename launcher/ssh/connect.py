"""From a host's name to an authenticated connection that notices when its peer is gone."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Iterator
from typing import Any, Literal

import paramiko

from launcher.errors import HostUnreachable
from launcher.hosts import Host
from launcher.ssh import config
from launcher.ssh.authenticate import authenticate
from launcher.ssh.host_key import algorithms_first, verify
from launcher.ssh.proxy import Way, find_way
from launcher.ssh.route import Route
from launcher.ssh.transport import Packets, Transport

logging.getLogger("paramiko").setLevel(logging.CRITICAL)  # it prints tracebacks of its threads

HANDSHAKES = 8  # at a time: sshd's MaxStartups drops some from the tenth on
TRIES = 6
PAUSE = 0.25  # seconds before the second try; doubled for each further one
ALIVE_INTERVAL = 5.0  # seconds of silence before the peer is asked for a sign of life
LAST_MOMENT = 1.0  # seconds
CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")  # paramiko would take them last

Policy = Literal["ask", "accept-new"]

_handshakes = threading.BoundedSemaphore(HANDSHAKES)


class Connection:
    """An authenticated transport, and what it runs over."""

    def __init__(self, transport: paramiko.Transport, route: Route, way: Way) -> None:
        self.transport = transport
        self.name = route.name
        self._way = way
        self._interval = min(route.alive_interval or ALIVE_INTERVAL, ALIVE_INTERVAL)
        self._patience = self._interval * max(route.alive_count, 2)
        self._silent = False
        self._closed = threading.Event()
        threading.Thread(target=self._watch, daemon=True, name="alive").start()

    @property
    def is_active(self) -> bool:
        return self.transport.is_active()

    def is_ending(self) -> bool:
        """Whether it is no more, or is about to be: it closes its channels before it says so."""
        self.transport.join(LAST_MOMENT)
        return not self.transport.is_active()

    def lost(self) -> HostUnreachable:
        """Why it is no more."""
        if self._silent:
            why = f"no sign of life for {self._patience:g} s"
        else:
            why = str(self.transport.saved_exception or "") or "closed by the other side"
        return HostUnreachable(
            f"{self.name}: connection lost: {why}; look whether the machine and its network are up"
        )

    def close(self) -> None:
        self._closed.set()
        self.transport.close()
        self._way.close()

    def _watch(self) -> None:
        """Any packet is a sign of life. The asking is another thread's: it blocks on a dead peer."""
        packets: Any = self.transport.packetizer
        asking: threading.Thread | None = None
        while not self._closed.wait(self._interval / 2) and self.transport.is_active():
            silence = time.monotonic() - packets.heard
            if silence > self._patience:
                self._silent = True
                self.transport.close()
            elif silence > self._interval and not (asking and asking.is_alive()):
                asking = threading.Thread(target=self._ask, daemon=True, name="ask")
                asking.start()

    def _ask(self) -> None:
        with contextlib.suppress(Exception):  # it went away meanwhile, and _watch sees that
            self.transport.global_request("keepalive@openssh.com", wait=True)


def dial(host: Host, *, timeout: float) -> Connection:
    """Connects and logs in. HostUnreachable, one line with the remedy, when that cannot be."""
    return _dial(config.make(host), host.host_keys, timeout)


def _dial(route: Route, policy: Policy, timeout: float) -> Connection:
    timeout = route.connect_timeout or timeout
    dropped = ""
    for attempt in range(TRIES):
        if attempt:
            time.sleep(PAUSE * 2 ** (attempt - 1) * random.uniform(0.7, 1.3))
        with _server(route).turn(alone=attempt > 0):
            way = find_way(route, policy, timeout, _dial)
            try:
                with _handshakes:
                    return Connection(_handshake(way.sock, route, timeout), route, way)
            except _Dropped as drop:
                dropped = str(drop)
                failure = way.failure()
                way.close()
                if failure:
                    raise failure from None
            except BaseException:
                way.close()
                raise
    raise HostUnreachable(
        f"{route.name}: sshd at {route.hostname}:{route.port} hangs up before the login, "
        f"{TRIES} times: {dropped}; look at its MaxStartups and PerSourcePenalties, and whether a "
        "firewall or fail2ban bans this machine"
    )


class _Dropped(Exception):
    """The server hung up before the login, as sshd does when it has too many at once."""


class _Server:
    """Lets a bounded number of logins at one server be under way."""

    def __init__(self) -> None:
        self._some = threading.BoundedSemaphore(HANDSHAKES)
        self._one = threading.Lock()

    @contextlib.contextmanager
    def turn(self, *, alone: bool) -> Iterator[None]:
        """Waits for one's turn; who was dropped once comes alone the next time."""
        with self._one if alone else contextlib.nullcontext(), self._some:
            yield


_servers: dict[tuple[str, int, int], _Server] = {}


def _server(route: Route) -> _Server:
    # a machine that is its own jump host waits for itself, hence the depth
    return _servers.setdefault((route.hostname, route.port, route.depth), _Server())


def _handshake(sock: Any, route: Route, timeout: float) -> paramiko.Transport:
    transport = Transport(sock, packetizer_class=Packets)
    transport.banner_timeout = timeout
    transport.handshake_timeout = timeout
    transport.auth_timeout = max(timeout, 20.0)  # PAM and LDAP take their time
    options = transport.get_security_options()
    with contextlib.suppress(ValueError):  # before paramiko 3.5
        options.ciphers = (*CIPHERS, *(c for c in options.ciphers if c not in CIPHERS))
    options.key_types = algorithms_first(route, tuple(options.key_types))
    try:
        _start(transport, route, timeout)
        verify(transport.get_remote_server_key(), route)
        authenticate(transport, route)
    except (paramiko.SSHException, EOFError, OSError) as error:
        transport.close()
        raise _Dropped(str(error) or type(error).__name__) from None
    except BaseException:
        transport.close()
        raise
    return transport


def _start(transport: paramiko.Transport, route: Route, timeout: float) -> None:
    """Banner and key exchange."""
    start = time.monotonic()
    try:
        transport.start_client(timeout=2 * timeout)
        transport.get_remote_server_key()
    except paramiko.ssh_exception.IncompatiblePeer as error:
        raise HostUnreachable(
            f"{route.name}: no common ground with its sshd: {error}; update OpenSSH there"
        ) from None
    except (paramiko.SSHException, EOFError, OSError) as error:
        said = str(error)
        if time.monotonic() - start >= timeout:  # paramiko does not tell late from hung up
            raise HostUnreachable(
                f"{route.name}: {route.hostname}:{route.port} takes the connection, but no sshd "
                f"answers within {timeout:g} s; look whether that port is sshd's and the machine "
                "is not overloaded"
            ) from None
        if "Indecipherable" in said or "Invalid SSH banner" in said:
            raise HostUnreachable(
                f"{route.name}: what listens at {route.hostname}:{route.port} is not sshd; "
                "mend the port"
            ) from None
        raise
