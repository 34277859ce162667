"""Find hosts that share one ~/.ddpctl, for example on NFS.

Mount types do not reveal sharing. So each host writes a file of its own and lists the files that it
sees. In a shared ~/.ddpctl, each attempt's folder has a file `host` that names its node's
host.
"""

import os
import secrets
from collections.abc import Sequence

from ..ssh.many import try_each
from ..ssh.node import Node

# `own FOLDER` succeeds if an attempt's folder belongs to a node of this host. `open_attempts` runs
# in ~/.ddpctl and prints the folders of unfinished attempts, which still have a ballast, if their
# journal was written to within a week. Their hosts may be in another hosts file.
OWN = """
own() { [ "$(cat "$1/host" 2>/dev/null)" = "$(uname -n)" ]; }
open_attempts() {
  for ballast in runs/*/nodes/*/attempt-*/ballast; do
    if [ -n "$(find "${ballast%/*}/journal" -mtime -7 2>/dev/null)" ]; then echo "${ballast%/*}"; fi
  done
}
"""

# $1 name of the folder, $2 name of this host's file
WRITE = 'umask 077; mkdir -p "$HOME/.ddpctl/$1" && : > "$HOME/.ddpctl/$1/$2"'
LIST = 'ls "$HOME/.ddpctl/$1"'
REMOVE = 'rm -rf "$HOME/.ddpctl/$1"; rmdir "$HOME/.ddpctl" 2>/dev/null; true'


def find_shared_homes(nodes: Sequence[Node]) -> list[list[Node]]:
    """Group the nodes that share one ~/.ddpctl, in the order given; most groups have one node.

    To read or write every ~/.ddpctl once, use the first node of each group. Best effort: a host
    that does not answer is a group of its own.
    """
    if len(nodes) < 2:
        return [[node] for node in nodes]
    folder = f".shared.{secrets.token_hex(6)}"
    tokens = {node: f"{number}" for number, node in enumerate(nodes)}
    written, _ = try_each(nodes, lambda node: node.script(WRITE, folder, tokens[node]).code)
    listed, _ = try_each([*written], lambda node: os.fsdecode(node.script(LIST, folder).stdout))

    def sees(node: Node, other: Node) -> bool:
        return tokens[other] in listed.get(node, "").split()

    groups: list[list[Node]] = []
    for node in nodes:
        if group := next((g for g in groups if sees(g[0], node) and sees(node, g[0])), None):
            group.append(node)
        else:
            groups.append([node])
    first = [group[0] for group in groups if group[0] in written]
    try_each(first, lambda node: node.script(REMOVE, folder))
    return groups
