"""Send a checkpoint, before an attempt resumes from it, to the hosts that lack it.

The files go through this machine into a hidden folder of the target. They are compared with the
source's digests and then renamed into place. Earlier files are kept in `.before-attempt-N`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from ..errors import CommandFailed
from ..facts.shared_homes import find_shared_homes
from ..runs.record import RunRecord
from ..ssh.many import ask_each, one_per_account
from ..ssh.node import Node
from ..ssh.stream import Completed
from ..terminal.console import Console
from .checkpoint_choice import File, HostCheckpoints, Transfer, choose

TIMEOUT = 900.0  # seconds for a script; hashing a large checkpoint is slow
TAR_TIMEOUT = 60.0  # seconds until tar must end after its last data

# $1: run folder. Prints, separated by NUL: the newest complete step, damaged later ones, all files.
LIST = r"""
cd "$1/checkpoints" 2>/dev/null || exit 0
for step in $(ls -d ckpt/step-[0-9]* 2>/dev/null | sort -rV); do
  [ -f "$step/MANIFEST" ] || continue
  if (cd "$step" && sha256sum -c --status MANIFEST) >/dev/null 2>&1; then
    printf 'whole %s\0' "$step"
    break
  fi
  printf 'damaged %s\0' "$step"
done
find . -mindepth 1 -name '.*' -prune -o -type f -printf '%T@ %s %P\0'
"""
# $1: run folder, $2: a folder in it; stdin: paths, separated by NUL
DIGESTS = (
    'cd "$1/$2" && xargs -0 -r -I@ find ./@ -type f -print0 | sort -z | xargs -0 -r sha256sum -z'
)
SEND = 'cd "$1/checkpoints" && tar -cf - --null -T -'
RECEIVE = 'mkdir -p "$1/checkpoints/$2" && tar -xf - -C "$1/checkpoints/$2"'
# $1: run folder, $2: received files, $3: where to keep the old ones, $4: "open" if others need
# access
PUT = r"""
cd "$1/checkpoints" || exit 1
if [ "$4" = open ]; then chmod -R a+rwX "$2"; fi
xargs -0 -r -n 1 sh -c '
  set -e
  folder=$(dirname "./$2")
  if [ -e "./$2" ]; then mkdir -p "$1/$folder"; mv "./$2" "$1/$folder/"; fi
  mkdir -p "$folder"
  mv "$0/$2" "./$2"' "$2" "$3" || exit 1
rm -rf "$2"
"""
DROP = 'rm -rf "$1/checkpoints/$2"'


@dataclass(frozen=True)
class CheckpointFolder:
    """A folder on a host that may contain checkpoints of the run."""

    node: Node
    run_dir: str
    rank: int | None
    same_rank: bool

    def script(self, text: str, *args: str, stdin: bytes = b"") -> Completed:
        """Run a script with the run's folder as $1. Raises CommandFailed."""
        done = self.node.script(text, self.run_dir, *args, stdin=stdin, timeout=TIMEOUT)
        if done.code != 0:
            raise CommandFailed(f"{self.node.name}: {self.run_dir}/checkpoints: {done.reason}")
        return done


def distribute_checkpoint(
    nodes: Sequence[Node],
    former: Sequence[Node],
    record: RunRecord,
    console: Console,
    *,
    open_to_all: bool = False,
) -> None:
    """Send the hosts of the next attempt the missing parts of its checkpoint.

    nodes: of the next attempt, in rank order. former: other hosts that may have checkpoints.
    open_to_all: the container's user is not the SSH user. Raises DdpctlError if a host does not
    receive a checkpoint that it needs.
    """
    with console.step(f"looking for the newest checkpoint on {len(nodes) + len(former)} hosts"):
        folders = checkpoint_folders(nodes, former, record)
        by_node = {folder.node: folder for folder in folders}
        seen, failures = ask_each([*by_node], lambda node: list_checkpoints(by_node[node]))
    for name in failures:
        console.say(f"no answer from {name}: not using checkpoints that only it has")
    choice = choose([*seen.values()])
    for host in seen.values():
        for path in host.damaged:
            console.say(f"{host.host}: not using {path}, which is incomplete or damaged")
    if choice.source is None:
        console.say("no host has a checkpoint of this run: starting from scratch")
        return
    console.say(f"resuming from {choice.what}, on {choice.source.host}")
    by_name = {folder.node.name: folder for folder in folders}
    aside = f".before-attempt-{len(record.attempts) + 1}"
    for transfer in choice.transfers:
        source, target = by_name[transfer.source.host], by_name[transfer.target.host]
        with console.step(f"sending {transfer.what} from {source.node.name} to {target.node.name}"):
            send(source, target, transfer, aside, open_to_all=open_to_all)


def checkpoint_folders(
    nodes: Sequence[Node], former: Sequence[Node], record: RunRecord
) -> list[CheckpointFolder]:
    """Return one folder per file system. Nodes of one machine and hosts with one home share it."""
    before = {entry.host: entry for entry in reversed(record.attempt.nodes)}
    ranks = {node: rank for rank, node in enumerate(nodes)}
    found = []
    for node, *_ in find_shared_homes(one_per_account((*nodes, *former))):
        entry, rank = before.get(node.name), ranks.get(node)
        # commands start in the home folder
        run_dir = entry.run_dir if entry else f".ddpctl/runs/{record.run_id}"
        same = entry is not None and entry.node_rank == rank
        found.append(CheckpointFolder(node, run_dir, rank, same))
    return found


def list_checkpoints(folder: CheckpointFolder) -> HostCheckpoints:
    """List a host's checkpoints. Skips malformed rows and paths."""
    newest, damaged, files = "", [], {}
    for row in folder.script(LIST).stdout.split(b"\0")[:-1]:
        text = row.decode(errors="surrogateescape")
        if match := re.fullmatch(r"(whole|damaged) (ckpt/step-[0-9]{1,18})", text):
            if match[1] == "whole":
                newest = match[2]
            else:
                damaged.append(match[2])
        elif (
            match := re.fullmatch(r"([0-9]{1,12})[.0-9]* ([0-9]{1,18}) (.+)", text, re.DOTALL)
        ) and _is_inside(match[3]):
            files[match[3]] = File(int(match[1]), int(match[2]))
    return HostCheckpoints(
        folder.node.name, folder.rank, folder.same_rank, newest, tuple(damaged), files
    )


def _is_inside(path: str) -> bool:
    """Return whether a relative path from a host stays in its folder."""
    return not path.startswith("/") and ".." not in PurePosixPath(path).parts


def send(
    source: CheckpointFolder,
    target: CheckpointFolder,
    transfer: Transfer,
    aside: str,
    *,
    open_to_all: bool = False,
) -> None:
    """Send files, verify them and rename them into place. A failure leaves the target unchanged."""
    paths = b"".join(path.encode(errors="surrogateescape") + b"\0" for path in transfer.paths)
    arriving = f".arriving-{transfer.source.host}"
    wanted = source.script(DIGESTS, "checkpoints", stdin=paths).stdout
    target.script(DROP, arriving)
    _stream(source, target, paths, arriving)
    if target.script(DIGESTS, f"checkpoints/{arriving}", stdin=paths).stdout != wanted:
        target.script(DROP, arriving)
        raise CommandFailed(
            f"{target.node.name}: {transfer.what} from {source.node.name} arrived damaged; "
            "resume again, and check the disks of both hosts"
        )
    target.script(PUT, arriving, aside, "open" if open_to_all else "", stdin=paths)


def _stream(
    source: CheckpointFolder, target: CheckpointFolder, paths: bytes, arriving: str
) -> None:
    with (
        source.node.open_script(SEND, source.run_dir) as sending,
        target.node.open_script(RECEIVE, target.run_dir, arriving) as receiving,
    ):
        try:
            sending.write(paths)
            sending.close_stdin()
            while data := sending.read():
                receiving.write(data)
            receiving.close_stdin()
        except BrokenPipeError:
            printed = receiving.stderr_tail().splitlines() or ["tar ended early"]
            raise CommandFailed(
                f"{target.node.name}: could not receive the checkpoint: {printed[-1]}; "
                "look at `df -h` there"
            ) from None
        for folder, stream in ((source, sending), (target, receiving)):
            if stream.wait(TAR_TIMEOUT) != 0:
                printed = stream.stderr_tail().splitlines() or ["tar failed"]
                raise CommandFailed(
                    f"{folder.node.name}: could not transfer the checkpoint: {printed[-1]}"
                )
