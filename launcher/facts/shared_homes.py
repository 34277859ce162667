"""Find hosts that share one ~/.ddpctl, for example on NFS.

Mount types do not reveal sharing. So each host writes a file of its own and lists the files that it
sees.
"""

import os
import secrets
from collections.abc import Sequence

from ..ssh.host_connection import HostConnection
from ..ssh.many import one_per_account, try_each
from ..ssh.script_files import load_script

STEP = load_script(__file__, "shared_home.sh")


def find_shared_homes(nodes: Sequence[HostConnection]) -> list[list[HostConnection]]:
    """Group the nodes that share one ~/.ddpctl, in the order given; most groups have one node.

    To read or write every ~/.ddpctl once, use the first node of each group. Best effort: a host
    that does not answer is a group of its own.
    """
    if len(nodes) < 2:
        return [[node] for node in nodes]
    folder = f".shared.{secrets.token_hex(6)}"
    tokens = {node: f"{number}" for number, node in enumerate(nodes)}
    written, _ = try_each(nodes, lambda node: node.script(STEP, "write", folder, tokens[node]).code)
    listed, _ = try_each(
        [*written], lambda node: os.fsdecode(node.script(STEP, "list", folder).stdout)
    )

    def sees(node: HostConnection, other: HostConnection) -> bool:
        return tokens[other] in listed.get(node, "").split()

    groups: list[list[HostConnection]] = []
    for node in nodes:
        if group := next((g for g in groups if sees(g[0], node) and sees(node, g[0])), None):
            group.append(node)
        else:
            groups.append([node])
    first = [group[0] for group in groups if group[0] in written]
    try_each(first, lambda node: node.script(STEP, "remove", folder))
    return groups


def one_per_home(nodes: Sequence[HostConnection]) -> list[HostConnection]:
    """Return one node of each home folder."""
    return [home[0] for home in find_shared_homes(one_per_account(nodes))]
