"""Gather facts from hosts."""

import time
from collections.abc import Sequence
from dataclasses import replace

from ..errors import CommandFailed
from ..ssh.host_connection import HostConnection
from ..ssh.many import each_node
from .facts import SCRIPT, Facts, parse

LONGEST = 2_000_000  # bytes of the script's output
MOST_SKEW = 3600.0  # seconds


def request_time(facts: Facts) -> float:
    """Return the current time by the host's clock, or by ours if the host's clock is far off."""
    skew = facts.clock_skew
    return time.time() + (skew if abs(skew) < MOST_SKEW else 0.0)


def gather(connections: Sequence[HostConnection]) -> tuple[Facts, ...]:
    """Return the facts of every host, in the given order. Raises NodesFailed if some do not answer."""
    return tuple(each_node(connections, gather_one).values())


def gather_one(connection: HostConnection, check: Sequence[str] | None = None) -> Facts:
    """Return one host's facts. check: what facts.sh needs to collect Details; None: skip them."""
    asked_for = ["gpus"] if connection.host.gpus != 0 else []
    if check is not None:
        asked_for += ["check", *check]
    connection.connect()
    asked = time.time()
    done = connection.script(
        SCRIPT, *asked_for, timeout=30.0 if check is None else 60.0, limit=LONGEST
    )
    try:
        facts = parse(done.stdout.decode(errors="replace"), asked, time.time())
    except ValueError as error:
        raise CommandFailed(
            f"cannot read what the host reports ({error})",
            "check that its login shell can run `sh`",
            host=connection.name,
        ) from None
    if connection.host.is_local:  # the user may have logged in to this machine to start ddpctl
        return replace(facts, ssh_server_ip=None, ssh_client_ip=None)
    return facts
