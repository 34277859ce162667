"""Open the link that an SSH connection runs over."""

import errno
import socket

from ..errors import HostUnreachable
from ..text import duration
from .connection import BROKEN, Connection
from .lean_paramiko import paramiko
from .link import CommandLink, Link
from .route import Route


def open_link(route: Route, jump: Connection | None) -> Link:
    """Open the link for a connection along `route`. jump: the last jump host's connection."""
    if jump:
        return _through_jump(route, jump)
    return CommandLink(route.proxy_command) if route.proxy_command else _direct(route)


def _direct(route: Route) -> Link:
    """Connect over TCP to the first of the host's addresses that answers."""
    try:
        addresses = socket.getaddrinfo(
            route.hostname, route.port, route.address_family, socket.SOCK_STREAM
        )
    except (socket.gaierror, UnicodeError) as error:
        why = error.strerror if isinstance(error, socket.gaierror) else error
        name = "its name" if route.hostname == route.host.name else f"its name {route.hostname}"
        raise HostUnreachable(
            f"{name} does not resolve ({why})",
            "correct it in the hosts file, add a HostName to ~/.ssh/config, or check this "
            "machine's DNS",
        ) from None
    failure: OSError = TimeoutError()
    source = (route.bind_address, 0) if route.bind_address else None
    timeout = route.connect_timeout / len(addresses)
    for *_, address in addresses:
        try:
            # with the interface of a link-local address, as in fe80::1%eth0
            ip, _ = socket.getnameinfo(address, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)
            sock = socket.create_connection((ip, route.port), timeout, source)
        except OSError as error:
            failure = error
        else:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return Link(sock)
    raise _explained(failure, route)


def _explained(error: OSError, route: Route) -> HostUnreachable:
    what = f"cannot reach this host{route.at}: {error.strerror or error}"
    remedy = "check that the host is up, and check this machine's network"
    if isinstance(error, ConnectionRefusedError):
        what = f"connection refused{route.at}"
        remedy = "check that sshd is running on that host and that the port is right"
    elif isinstance(error, TimeoutError):
        what = f"no answer{route.at} within {duration(route.connect_timeout)}"
        remedy = "check that the machine is up and that no firewall blocks the port"
    elif error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL):
        what = f"no route to this host{route.at} ({error.strerror})"
        remedy = (
            "check that the machine is up, check the network (VPN?), or set proxy_jump if the host "
            "is behind a bastion"
        )
    return HostUnreachable(what, remedy)


def _through_jump(route: Route, jump: Connection) -> Link:
    """Open a channel that the jump host forwards to the host."""
    to, source = (route.hostname, route.port), ("127.0.0.1", 0)
    try:
        channel = jump.open_channel("direct-tcpip", to, source, timeout=route.connect_timeout)
        return Link(channel)
    except BROKEN as error:
        reason = str(getattr(error, "text", error)) or type(error).__name__
        if "Timeout" in reason:
            reason = f"no answer within {duration(route.connect_timeout)}"
        why = f"cannot reach this host{route.at} ({reason})"
        remedy = (
            "check that both hosts are up, that this host's name resolves on the jump host, and that "
            "its sshd uses that port"
        )
        if isinstance(error, paramiko.ChannelException) and error.code == 1:
            why = "is not allowed to forward connections to this host"
            remedy = "set `AllowTcpForwarding yes` in the jump host's sshd_config"
        raise HostUnreachable(f"jump host {jump.host} {why}", remedy) from None
