"""Choose the checkpoint that an attempt resumes from, and send it to the hosts that lack it.

There are two kinds of checkpoints. Our trainer writes folders `ckpt/step-N` with a MANIFEST. A
folder is complete if its files have the digests in the MANIFEST, and the newest complete folder on
any host is chosen. For other scripts, ddpctl sees only files, so it chooses the files of the host
that wrote last.

Files that are replaced are moved to `.before-attempt-N`.
"""

import dataclasses
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NamedTuple

from ..errors import lines
from ..facts.shared_homes import one_per_home
from ..look.fetch import inside
from ..plan.container import fixed_uid
from ..plan.plan import STORE, Plan, run_dir_in
from ..runs.record import RunRecord
from ..ssh.host_connection import HostConnection
from ..ssh.many import each_node, try_each
from ..ssh.script_files import load_script
from ..terminal.console import Console
from ..text import counted
from .plain_files import HostFolder, copy_files, is_below, matches

LIST = load_script(__file__, "list_checkpoints.sh")
ROW = re.compile(r"(= )?([0-9]{1,12})[.0-9]* ([0-9]{1,18}) (.+?)(?://(.+))?", re.DOTALL)
MANIFEST = re.compile(r"ckpt/step-([0-9]{1,18})/MANIFEST")
STEP = re.compile(r"(whole|damaged) (ckpt/step-[0-9]{1,18})")


class File(NamedTuple):
    time: int  # last modification, unix seconds on the host's clock
    size: int  # bytes
    link: str = ""  # a link's target, relative to its folder; then time and size are 0


@dataclass(frozen=True)
class Checkpoints(HostFolder):
    """The run's folder on a host, and the checkpoints in it."""

    rank: int | None  # the host's node rank in the next attempt; None if it has none
    same_rank: bool  # whether the last attempt to start gave it this rank; then it keeps its files
    newest: str = ""  # the newest step that matches its MANIFEST, such as ckpt/step-00000012
    damaged: tuple[str, ...] = ()  # incomplete or damaged steps after `newest`
    files: Mapping[str, File] = field(default_factory=dict)  # by path; hidden files are omitted
    # paths of files that are unchanged since ddpctl copied them there or since the rank changed
    copied: Collection[str] = ()

    @property
    def step(self) -> int:
        """The step number of `newest`; -1 if there is none."""
        return int(self.newest.rpartition("-")[2] or -1)

    def lacks(self, path: str, file: File) -> bool:
        """Return whether to send `file`.

        A host whose node rank is unchanged keeps what its ranks wrote.
        """
        version = self.files.get(path)
        keeps = version and self.same_rank and path not in self.copied
        return version != file and not keeps


@dataclass(frozen=True)
class ResumePoint:
    """The checkpoint to resume from, and which of its folders, files or links each host lacks."""

    source: Checkpoints
    what: str  # the checkpoint's name, for messages
    missing: Sequence[tuple[Checkpoints, Mapping[str, str]]]  # with a link's target, else ""


def distribute_checkpoint(
    connections: Sequence[HostConnection],
    former: Sequence[HostConnection],
    record: RunRecord,
    plan: Plan,
    console: Console,
) -> None:
    """Choose the checkpoint, and send the hosts of the next attempt the parts that they lack.

    connections: the hosts of the next attempt, in rank order. former: other hosts that may have
    checkpoints. record: the record of the attempts so far. plan: the plan of the next attempt.
    Raises DdpctlError if a host does not receive a checkpoint that it needs.
    """
    hosts = counted(len(connections) + len(former), "host")
    with console.step(f"looking for the newest checkpoint on {hosts}"):
        folders = {
            each.connection: each for each in checkpoint_folders(connections, former, record)
        }
        nodes = [each for each in folders if folders[each].rank is not None]
        seen, failures = try_each(nodes, lambda each: with_content(folders[each]))
        known = max((host.step for host in seen.values()), default=-1)
        # asked last, because the run may have dropped a host whose disk hangs
        others = [each for each in folders if each not in nodes]
        left, missing = try_each(others, lambda each: with_content(folders[each], known))
        seen, failures = {**seen, **left}, {**failures, **missing}
    for line in lines(failures.values()):
        console.say(f"ignoring checkpoints that no other host has: {line}")
    for host in seen.values():
        for path in host.damaged:
            console.say(f"{host.connection.name}: not using {path}, which is incomplete or damaged")
    point = choose([*seen.values()])
    if point is None:
        which = "host that answered" if failures else "host"
        console.say(f"no {which} has a checkpoint of this run: starting from scratch")
        return
    source = point.source.connection.name
    console.say(f"resuming from {point.what} on {source}")
    aside, uid = f".before-attempt-{len(record.attempts) + 1}", fixed_uid(plan)
    for target, paths in point.missing:
        with console.step(f"sending {point.what} from {source} to {target.connection.name}"):
            copy_files(point.source, target, paths, copies=target.copied, aside=aside, uid=uid)
    if not point.source.newest:
        # what a node wrote at another rank must not stay when a later attempt keeps the new rank
        moved = [each for each in nodes if each in seen and not folders[each].same_rank]
        each_node(moved, lambda each: folders[each].script(LIST, "mark", prints=False))


def checkpoint_folders(
    connections: Sequence[HostConnection], former: Sequence[HostConnection], record: RunRecord
) -> list[Checkpoints]:
    """Return the run's folder on each host, but only once if several nodes or hosts share it."""
    before = {entry.host: entry for entry in reversed(record.last_started.nodes)}
    ranks = {connection: rank for rank, connection in enumerate(connections)}
    folders = []
    for connection in one_per_home((*connections, *former)):
        entry, rank = before.get(connection.name), ranks.get(connection)
        run_dir = entry.run_dir if entry else run_dir_in(STORE, record.run_id)
        same = entry is not None and entry.node_rank == rank
        folders.append(Checkpoints(connection, run_dir, rank, same))
    return folders


def with_content(folder: Checkpoints, known: int = -1) -> Checkpoints:
    """Return the folder with the content that its host reports. Skips malformed rows and paths.

    known: the newest complete step on other hosts. This host hashes its steps only if one is newer.
    """
    newest, damaged, files, copied = "", [], {}, set()
    for match in matches(ROW, folder.script(LIST, "files")):
        copy, time, size, path, leads_to = match.groups()
        link = link_within(path, leads_to, folder.run_dir) if leads_to else ""
        if is_below(path) and link is not None:
            files[path] = File(int(time), int(size), link)
            copied.update([path] if copy else [])
    steps = [int(step[1]) for step in map(MANIFEST.fullmatch, files) if step]
    if steps and max(steps) <= known:
        return dataclasses.replace(folder, files=files, copied=copied)
    size = sum(file.size for file in files.values())
    for match in matches(STEP, folder.script(LIST, "steps", hashed=size)):
        if match[1] == "whole":
            newest = match[2]
        else:
            damaged.append(match[2])
    return dataclasses.replace(
        folder, newest=newest, damaged=tuple(damaged), files=files, copied=copied
    )


def link_within(path: str, text: str, run_dir: str) -> str | None:
    """Return the target of a link in the checkpoints, relative to its folder; None if it leads out."""
    here = PurePosixPath("checkpoints", path)
    leads_to = inside(here, os.fsencode(text), run_dir)
    if leads_to is None or leads_to.parts[0] != "checkpoints":
        return None
    return os.path.relpath(leads_to, here.parent)


def choose(hosts: Sequence[Checkpoints]) -> ResumePoint | None:
    """Return the checkpoint to resume from; None if there is none. Pure.

    hosts: the hosts of the next attempt in rank order, then the former hosts.
    """
    nodes = [host for host in hosts if host.rank is not None]
    if any(host.newest for host in hosts):
        source = max(hosts, key=lambda host: (host.step, host.rank is not None))
        # one host of the attempt is enough, because the trainer's ranks share the checkpoint
        needed = nodes[:1] if source.rank is None else []
        name = source.newest.rpartition("/")[2]
        return ResumePoint(source, name, [(target, {source.newest: ""}) for target in needed])
    written = [host for host in hosts if host.files]
    if not written:
        return None
    source = max(written, key=lambda host: max(file.time for file in host.files.values()))
    files = sorted(source.files.items())
    missing = [
        (node, {path: file.link for path, file in files if node.lacks(path, file)})
        for node in nodes
    ]
    return ResumePoint(source, "the newest checkpoint", [each for each in missing if each[1]])
