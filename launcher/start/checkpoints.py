"""Choose the checkpoint that an attempt resumes from, and send it to the hosts that lack it.

There are two kinds. Our trainer writes folders `ckpt/step-N` with a MANIFEST. They are complete if
the digests match, and the newest complete one on any host wins. For other scripts, ddpctl sees only
files, so the host that wrote last wins.

The files go through this machine into a hidden folder on the target. They are compared with the
source's digests and then renamed into place. Files that they replace go to `.before-attempt-N`.
"""

import contextlib
import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..errors import CommandFailed
from ..facts.shared_homes import find_shared_homes
from ..plan.plan import STORE, run_dir_in
from ..runs.record import RunRecord
from ..ssh.limits import LONG_OUTPUT
from ..ssh.many import ask_each, one_per_account
from ..ssh.node import Node
from ..ssh.script_files import load_script
from ..ssh.stream import Completed
from ..terminal.console import Console
from ..text import names

TIMEOUT = 900.0  # seconds for a script; hashing a large checkpoint is slow
TAR_TIMEOUT = 60.0  # seconds for tar to end after its last data
LIST = load_script(__file__, "list_checkpoints.sh")
HASH = load_script(__file__, "hash_files.sh")
SEND = load_script(__file__, "send_files.sh")
RECEIVE = load_script(__file__, "receive_files.sh")
PLACE = load_script(__file__, "place_files.sh")
ROW = re.compile(
    r"(whole|damaged) (ckpt/step-[0-9]{1,18})|([0-9]{1,12})[.0-9]* ([0-9]{1,18}) (.+)", re.DOTALL
)


class File(NamedTuple):
    time: int  # last modification, unix seconds on the host's clock
    size: int  # bytes


@dataclass(frozen=True)
class Checkpoints:
    """The run's folder on a host, and the checkpoints in it."""

    node: Node
    run_dir: str
    rank: int | None  # node rank in the next attempt; None: not part of it
    same_rank: bool  # it had the same rank in the last attempt, so its files are its own
    newest: str = ""  # the newest one that matches its MANIFEST, such as ckpt/step-00000012
    damaged: tuple[str, ...] = ()  # incomplete or damaged steps after `newest`
    files: Mapping[str, File] = field(default_factory=dict)  # by path, without hidden files

    @property
    def step(self) -> int:
        """The step number of `newest`; -1 if there is none."""
        return int(self.newest.rpartition("-")[2] or -1)

    def lacks(self, path: str, file: File) -> bool:
        """Return whether the host needs `file`. If its rank is unchanged, it keeps its own version."""
        own = self.files.get(path)
        return own is None or not (self.same_rank or own == file)

    def script(self, text: str, *args: str, stdin: bytes = b"") -> Completed:
        """Run a script with the run's folder as $1. Raises CommandFailed."""
        done = self.node.script(
            text, self.run_dir, *args, stdin=stdin, timeout=TIMEOUT, limit=LONG_OUTPUT
        )
        if done.code != 0:
            raise CommandFailed(
                f"{self.run_dir}/checkpoints: {done.reason}",
                "look at `df -h` and the permissions there",
                host=self.node.name,
            )
        return done


@dataclass(frozen=True)
class ResumePoint:
    """The checkpoint to resume from, and the folders or files of it that each host lacks."""

    source: Checkpoints
    what: str  # its name, for messages
    missing: Sequence[tuple[Checkpoints, Sequence[str]]]


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
    open_to_all: the container's user is neither root nor the SSH user. Raises DdpctlError if a host
    does not receive a checkpoint that it needs.
    """
    with console.step(f"looking for the newest checkpoint on {len(nodes) + len(former)} hosts"):
        folders = {each.node: each for each in checkpoint_folders(nodes, former, record)}
        seen, failures = ask_each([*folders], lambda node: with_content(folders[node]))
    if failures:
        console.say(
            f"no answer from {names(failures)}: checkpoints that only these have are not used"
        )
    for host in seen.values():
        for path in host.damaged:
            console.say(f"{host.node.name}: not using {path}, which is incomplete or damaged")
    point = choose([*seen.values()])
    if point is None:
        which = "host that answered" if failures else "host"
        console.say(f"no {which} has a checkpoint of this run: starting from scratch")
        return
    source = point.source.node.name
    console.say(f"resuming from {point.what}, on {source}")
    aside = f".before-attempt-{len(record.attempts) + 1}"
    for target, paths in point.missing:
        with console.step(f"sending {point.what} from {source} to {target.node.name}"):
            send(point.source, target, paths, aside, open_to_all=open_to_all)


def checkpoint_folders(
    nodes: Sequence[Node], former: Sequence[Node], record: RunRecord
) -> list[Checkpoints]:
    """Return each folder once: nodes on one machine share it, and so do hosts with a shared home."""
    before = {entry.host: entry for entry in reversed(record.attempt.nodes)}
    ranks = {node: rank for rank, node in enumerate(nodes)}
    found = []
    for node, *_ in find_shared_homes(one_per_account((*nodes, *former))):
        entry, rank = before.get(node.name), ranks.get(node)
        run_dir = entry.run_dir if entry else run_dir_in(STORE, record.run_id)
        same = entry is not None and entry.node_rank == rank
        found.append(Checkpoints(node, run_dir, rank, same))
    return found


def with_content(folder: Checkpoints) -> Checkpoints:
    """Return the folder with what the host says it contains, without malformed rows and paths."""
    newest, damaged, files = "", [], {}
    for row in folder.script(LIST).rows():
        if match := ROW.fullmatch(row.decode(errors="surrogateescape")):
            kind, step, time, size, path = match.groups()
            if kind == "whole":
                newest = step
            elif kind == "damaged":
                damaged.append(step)
            elif not path.startswith("/") and ".." not in path.split("/"):
                files[path] = File(int(time), int(size))
    return dataclasses.replace(folder, newest=newest, damaged=tuple(damaged), files=files)


def choose(hosts: Sequence[Checkpoints]) -> ResumePoint | None:
    """Choose a checkpoint; None if there is none. Pure.

    hosts: those of the next attempt in rank order, then the former ones.
    """
    nodes = [host for host in hosts if host.rank is not None]
    if any(host.newest for host in hosts):
        source = max(hosts, key=lambda host: (host.step, host.rank is not None))
        # one host of the attempt needs it; the trainer's ranks then share it
        needed = nodes[:1] if source.rank is None else []
        name = source.newest.rpartition("/")[2]
        return ResumePoint(source, name, [(target, [source.newest]) for target in needed])
    written = [host for host in hosts if host.files]
    if not written:
        return None
    source = max(written, key=lambda host: max(file.time for file in host.files.values()))
    files = sorted(source.files.items())
    missing = [(node, [path for path, file in files if node.lacks(path, file)]) for node in nodes]
    return ResumePoint(source, "the newest checkpoint", [each for each in missing if each[1]])


def send(
    source: Checkpoints,
    target: Checkpoints,
    paths: Sequence[str],
    aside: str,
    *,
    open_to_all: bool = False,
) -> None:
    """Send files, verify them and move them into place. Until then, no checkpoint there changes."""
    listed = b"".join(path.encode(errors="surrogateescape") + b"\0" for path in paths)
    arriving = f".arriving-{source.node.name}"
    wanted = source.script(HASH, "checkpoints", stdin=listed).stdout
    _stream(source, target, listed, arriving)
    if target.script(HASH, f"checkpoints/{arriving}", stdin=listed).stdout != wanted:
        target.node.run(["rm", "-rf", f"{target.run_dir}/checkpoints/{arriving}"])
        raise CommandFailed(
            f"the checkpoint from {source.node.name} arrived damaged",
            "resume again, and check the disks of both hosts",
            host=target.node.name,
        )
    target.script(PLACE, arriving, aside, "open" if open_to_all else "", stdin=listed)


def _stream(source: Checkpoints, target: Checkpoints, listed: bytes, arriving: str) -> None:
    with (
        source.node.open_script(SEND, source.run_dir) as sending,
        target.node.open_script(RECEIVE, target.run_dir, arriving) as receiving,
    ):
        ends = [(source, sending), (target, receiving)]
        with contextlib.suppress(BrokenPipeError):  # the source's tar ended early
            sending.write(listed)
            sending.close_stdin()
        try:
            while data := sending.read():
                receiving.write(data)
            receiving.close_stdin()
        except BrokenPipeError:  # the target's tar ended early
            ends = ends[1:]
        for folder, stream in ends:
            with contextlib.suppress(TimeoutError):
                if stream.wait(TAR_TIMEOUT) == 0:
                    continue
            printed = stream.stderr_tail().splitlines() or ["tar failed or did not finish"]
            raise CommandFailed(
                f"could not transfer the checkpoint: {printed[-1]}",
                "look at `df -h` there",
                host=folder.node.name,
            )
