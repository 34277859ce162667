"""Choose the checkpoint that an attempt resumes from, and send it to the hosts that lack it.

There are two kinds. Our trainer writes folders `ckpt/step-N` with a MANIFEST. They are complete if
the digests match, and the newest complete one on any host wins. For other scripts, ddpctl sees only
files, so the host that wrote last wins.

Files that are replaced move to `.before-attempt-N`.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..facts.shared_homes import one_per_home
from ..plan.container import fixed_uid
from ..plan.plan import STORE, Plan, run_dir_in
from ..runs.record import RunRecord
from ..ssh.host_connection import HostConnection
from ..ssh.many import ask_each
from ..ssh.script_files import load_script
from ..terminal.console import Console
from ..text import counted, names
from .plain_files import HostFolder, copy_files

LIST = load_script(__file__, "list_checkpoints.sh")
ROW = re.compile(
    r"(whole|damaged) (ckpt/step-[0-9]{1,18})|([0-9]{1,12})[.0-9]* ([0-9]{1,18}) (.+)", re.DOTALL
)


class File(NamedTuple):
    time: int  # last modification, unix seconds on the host's clock
    size: int  # bytes


@dataclass(frozen=True)
class Checkpoints(HostFolder):
    """The run's folder on a host, and the checkpoints in it."""

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
        """Return whether the host needs `file`. A host with an unchanged rank keeps its own version."""
        own = self.files.get(path)
        return own is None or not (self.same_rank or own == file)


@dataclass(frozen=True)
class ResumePoint:
    """The checkpoint to resume from, and the folders or files of it that each host lacks."""

    source: Checkpoints
    what: str  # its name, for messages
    missing: Sequence[tuple[Checkpoints, Sequence[str]]]


def distribute_checkpoint(
    connections: Sequence[HostConnection],
    former: Sequence[HostConnection],
    record: RunRecord,
    plan: Plan,
    console: Console,
) -> None:
    """Send the hosts of the next attempt the missing parts of its checkpoint.

    connections: to the nodes of the next attempt, in rank order. former: to other hosts that may have
    checkpoints. record: what the attempts so far recorded. plan: that of the next attempt. Raises
    DdpctlError if a host does not receive a checkpoint that it needs.
    """
    hosts = counted(len(connections) + len(former), "host")
    with console.step(f"looking for the newest checkpoint on {hosts}"):
        folders = {
            each.connection: each for each in checkpoint_folders(connections, former, record)
        }
        seen, failures = ask_each([*folders], lambda connection: with_content(folders[connection]))
    if failures:
        silent = f"no answer from {names(failures)}"
        console.say(f"{silent}: checkpoints that only these hosts have are not used")
    for host in seen.values():
        for path in host.damaged:
            console.say(f"{host.connection.name}: not using {path}, which is incomplete or damaged")
    point = choose([*seen.values()])
    if point is None:
        which = "host that answered" if failures else "host"
        console.say(f"no {which} has a checkpoint of this run: starting from scratch")
        return
    source = point.source.connection.name
    console.say(f"resuming from {point.what}, on {source}")
    aside, uid = f".before-attempt-{len(record.attempts) + 1}", fixed_uid(plan)
    for target, paths in point.missing:
        with console.step(f"sending {point.what} from {source} to {target.connection.name}"):
            raw_paths = [path.encode(errors="surrogateescape") for path in paths]
            copy_files(point.source, target, raw_paths, aside, uid)


def checkpoint_folders(
    connections: Sequence[HostConnection], former: Sequence[HostConnection], record: RunRecord
) -> list[Checkpoints]:
    """Return each folder once: nodes on one machine share it, and so do hosts with a shared home."""
    before = {entry.host: entry for entry in reversed(record.attempt.nodes)}
    ranks = {connection: rank for rank, connection in enumerate(connections)}
    folders = []
    for connection in one_per_home((*connections, *former)):
        entry, rank = before.get(connection.name), ranks.get(connection)
        run_dir = entry.run_dir if entry else run_dir_in(STORE, record.run_id)
        same = entry is not None and entry.node_rank == rank
        folders.append(Checkpoints(connection, run_dir, rank, same))
    return folders


def with_content(folder: Checkpoints) -> Checkpoints:
    """Return the folder with the contents that the host reports. Skips malformed rows and paths."""
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
