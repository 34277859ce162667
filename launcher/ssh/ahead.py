"""Hosts that are dialled while the rest of the program still loads: the two take about as long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from launcher.hosts import Host
from launcher.ssh.quiet import quietly

if TYPE_CHECKING:
    from launcher.ssh.connect import Connection

_dialled: dict[Host, Future[Connection]] = {}


def dial_ahead(hosts: Iterable[Host], *, timeout: float = 10.0) -> None:
    """Begins to connect to each host that is not this machine, and waits for none."""
    remote = [host for host in hosts if not host.is_local and host not in _dialled]
    if not remote:
        return
    with quietly():
        from launcher.ssh.connect import dial
    for host in remote:
        begun = _dialled[host] = Future()
        work = (begun, lambda host=host: dial(host, timeout=timeout))
        threading.Thread(target=_keep, args=work, daemon=True).start()


def dialled(host: Host) -> Connection | None:
    """The connection that was begun ahead, for the first who asks. Raises what its dialling raised."""
    begun = _dialled.pop(host, None)
    return begun.result() if begun else None


def _keep(begun: Future[Connection], dial: Callable[[], Connection]) -> None:
    try:
        begun.set_result(dial())
    except BaseException as error:
        begun.set_exception(error)
