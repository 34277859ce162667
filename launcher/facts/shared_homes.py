"""Find hosts that share one ~/.ddpctl, for example on NFS.

Mount types do not reveal this, so each host writes a file of its own and lists the files it sees.
"""

import os
import secrets
from collections.abc import Sequence

from ..ssh.host_connection import HostConnection
from ..ssh.many import one_per_account, try_each
from ..ssh.script_files import load_script

STEP = load_script(__file__, "shared_home.sh")


def find_shared_homes(connections: Sequence[HostConnection]) -> list[list[HostConnection]]:
    """Group the hosts that share one ~/.ddpctl, keeping their order; most groups have one host.

    To read or write every ~/.ddpctl once, use the first host of each group. A host that does not
    answer is a group of its own.
    """
    if len(connections) < 2:
        return [[connection] for connection in connections]
    folder = f".shared.{secrets.token_hex(6)}"
    tokens = {connection: f"{number}" for number, connection in enumerate(connections)}
    written, _ = try_each(
        connections,
        lambda connection: connection.script(STEP, "write", folder, tokens[connection]).code,
    )
    listed, _ = try_each(
        [*written], lambda connection: os.fsdecode(connection.script(STEP, "list", folder).stdout)
    )

    def sees(connection: HostConnection, other: HostConnection) -> bool:
        return tokens[other] in listed.get(connection, "").split()

    groups: list[list[HostConnection]] = []
    for connection in connections:
        if group := next(
            (g for g in groups if sees(g[0], connection) and sees(connection, g[0])), None
        ):
            group.append(connection)
        else:
            groups.append([connection])
    first = [group[0] for group in groups if group[0] in written]
    try_each(first, lambda connection: connection.script(STEP, "remove", folder))
    return groups


def one_per_home(connections: Sequence[HostConnection]) -> list[HostConnection]:
    """Return one host for each distinct ~/.ddpctl."""
    return [home[0] for home in find_shared_homes(one_per_account(connections))]
