"""Pushed datasets and code that no run uses any more: found on every host, then removed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launcher.errors import DdpctlError
from launcher.push.transfer.send import refused
from launcher.ssh.many import try_each
from launcher.ssh.node import Node

TIMEOUT = 600.0  # seconds; a large tree takes its time to measure and to remove

GRACE = 5  # seconds between a push and the container that mounts what was pushed

# Prints "FOLDER KB" for each tree and draft that neither a container, running or not, nor a process
# that ddpctl has started knows of. $1 grace; the others: digests to keep
FIND = r"""
cd "$HOME/.ddpctl" 2>/dev/null || exit 0
used=$(docker ps -a --filter label=io.ddpctl.run-id -q 2>/dev/null |
  xargs -r docker inspect --format '{{range .Mounts}}{{.Source}} {{end}}' 2>/dev/null)
live=$(for file in runs/*/nodes/*/attempt-*/pid; do
  [ -f "$file" ] || continue
  read -r pid rest < "$file"
  tr '\000' ' ' < "/proc/$pid/environ"
done 2>/dev/null)
now=$(date +%s) grace=$1
shift
for tree in datasets/* workdirs/* datasets/.[!.]* workdirs/.[!.]*; do
  [ -d "$tree" ] || continue
  case "$used $live $*" in *"${tree##*/}"*) continue ;; esac
  [ $((now - $(stat -c %Y "$tree"))) -lt "$grace" ] && continue
  if [ -f "$tree/holder" ]; then
    read -r pid rest < "$tree/holder"
    kill -0 "$pid" 2>/dev/null && continue
  fi
  echo "$tree $(du -sk "$tree" | cut -f 1)"
done
"""

REMOVE = r"""
cd "$HOME/.ddpctl" || exit 1
for tree in "$@"; do
  rm -rf "$tree" "manifests/${tree##*/}" || exit 1
done
"""


@dataclass(frozen=True)
class Unused:
    folder: str  # below ~/.ddpctl
    size: int  # bytes; what it shares with other versions counts too


def unused(
    nodes: Sequence[Node], keep: Sequence[str]
) -> tuple[dict[Node, list[Unused]], dict[Node, DdpctlError]]:
    """What could be removed on each host, but for these digests; hosts that could not be asked."""
    return try_each(nodes, lambda node: _find(node, keep))


def remove(trees: Mapping[Node, Sequence[Unused]]) -> dict[Node, DdpctlError]:
    """Gives the hosts where something is left, and why."""

    def act(node: Node) -> None:
        folders = [tree.folder for tree in trees[node]]
        done = node.script(REMOVE, *folders, timeout=TIMEOUT)
        if done.code != 0:
            raise refused(node.name, "prune", done.stderr.decode(errors="replace"), done.code)

    return try_each([node for node, found in trees.items() if found], act)[1]


def _find(node: Node, keep: Sequence[str]) -> list[Unused]:
    done = node.script(FIND, str(GRACE), *keep, timeout=TIMEOUT)
    if done.code != 0:
        raise refused(node.name, "prune", done.stderr.decode(errors="replace"), done.code)
    rows = [line.rpartition(" ") for line in done.stdout.decode(errors="replace").splitlines()]
    return [Unused(folder, int(size) * 1024) for folder, _, size in rows]
