"""From a host's name to an authenticated connection."""

from __future__ import annotations

import logging
from pathlib import Path

import paramiko

from launcher.errors import HostUnreachable
from launcher.hosts import Host

logging.getLogger("paramiko").setLevel(logging.CRITICAL)  # it prints tracebacks of its threads


def dial(host: Host, *, timeout: float) -> paramiko.Transport:
    client = paramiko.SSHClient()
    client.load_system_host_keys()
    if host.host_keys == "accept-new":
        client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
    try:
        client.connect(
            host.host,
            port=host.port or 22,
            username=host.user,
            key_filename=str(Path(host.identity_file).expanduser()) if host.identity_file else None,
            timeout=timeout,
            banner_timeout=timeout,
            auth_timeout=timeout,
        )
    except (paramiko.SSHException, OSError, EOFError) as error:
        raise HostUnreachable(f"{host.name}: {error or type(error).__name__}") from None
    transport = client.get_transport()
    assert transport is not None
    transport.client = client  # type: ignore[attr-defined]
    return transport
