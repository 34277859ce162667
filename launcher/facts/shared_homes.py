"""Which hosts share one ~/.ddpctl, as with home folders on NFS.

Each host writes a file under its own name and lists what it sees, as mount types do not tell. In a
shared ~/.ddpctl, the file `host` in the folder of an attempt names the host whose node it is.
"""

from __future__ import annotations

import secrets
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..ssh.many import try_each
from ..ssh.node import Node

T = TypeVar("T", bound=Hashable)

# Defines `own FOLDER`: whether the folder of an attempt belongs to a node of this host, and
# `open_attempts`: the folders in ~/.ddpctl, the current one, of attempts that have written to their
# journal within a week and have not ended it. Their hosts may be in another hosts file.
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


@dataclass(frozen=True)
class SharedHomes(Generic[T]):
    """groups: the hosts that share one ~/.ddpctl, in the order given; most are alone in theirs."""

    groups: tuple[tuple[T, ...], ...]

    @property
    def leaders(self) -> tuple[T, ...]:
        """One host of each group: enough to read or write every ~/.ddpctl once."""
        return tuple(group[0] for group in self.groups)


def group_hosts(tokens: Mapping[T, str], seen: Mapping[T, frozenset[str]]) -> SharedHomes[T]:
    """Two hosts share a home if each sees the other's token. A host that saw nothing is alone."""
    groups: list[list[T]] = []
    for host, token in tokens.items():
        for group in groups:
            leader = group[0]
            if token in seen.get(leader, ()) and tokens[leader] in seen.get(host, ()):
                group.append(host)
                break
        else:
            groups.append([host])
    return SharedHomes(tuple(tuple(group) for group in groups))


def find_shared_homes(nodes: Sequence[Node]) -> SharedHomes[Node]:
    """Ask the hosts. Best effort: a host that does not answer counts as alone."""
    if len(nodes) < 2:
        return SharedHomes(tuple((node,) for node in nodes))
    folder = f".shared.{secrets.token_hex(6)}"
    tokens = {node: f"{number}" for number, node in enumerate(nodes)}
    written, _ = try_each(nodes, lambda node: node.script(WRITE, folder, tokens[node]).code)
    listed, _ = try_each(list(written), lambda node: node.script(LIST, folder).stdout.split())
    found = group_hosts(
        tokens,
        {
            node: frozenset(t for t in tokens.values() if t.encode() in listed[node])
            for node in listed
        },
    )
    try_each([n for n in found.leaders if n in written], lambda node: node.script(REMOVE, folder))
    return found
