"""Choose the checkpoint that the next attempt resumes from, and the hosts to send it to. Pure.

There are two kinds. Folders `ckpt/step-N` with a MANIFEST, as our trainer writes them, are complete
if the digests match; the newest complete one wins, on whichever host. For other scripts, ddpctl
knows only files; those of the host that wrote last win.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class File:
    time: int  # last modification, unix seconds on the host's clock
    size: int  # bytes


@dataclass(frozen=True)
class HostCheckpoints:
    host: str
    rank: int | None  # node rank in the next attempt; None: not part of it
    same_rank: bool  # it had the same rank in the last attempt, so its files are its own
    newest: str = ""  # the newest one that matches its MANIFEST, such as ckpt/step-00000012
    damaged: tuple[str, ...] = ()  # incomplete steps after `newest`
    files: Mapping[str, File] = field(default_factory=dict)  # by path, without hidden files

    @property
    def step(self) -> int:
        """The step number of `newest`."""
        return int(self.newest.rpartition("-")[2] or -1)


@dataclass(frozen=True)
class Transfer:
    source: HostCheckpoints
    target: HostCheckpoints
    paths: tuple[str, ...]  # folders or files; the target's own versions are kept aside
    what: str  # for messages


@dataclass(frozen=True)
class Choice:
    """The checkpoint to resume from. source: a host that has it; None: there is no checkpoint."""

    source: HostCheckpoints | None
    what: str
    transfers: tuple[Transfer, ...] = ()


def choose(hosts: Sequence[HostCheckpoints]) -> Choice:
    """Choose a checkpoint. hosts: of the next attempt, then of the last one, in rank order."""
    if any(host.newest for host in hosts):
        return _newest_step(hosts)
    written = [host for host in hosts if host.files]
    if not written:
        return Choice(None, "")
    source = max(written, key=lambda host: max(file.time for file in host.files.values()))
    transfers = [_missing_files(source, host) for host in hosts if host.rank is not None]
    return Choice(source, "the newest checkpoint", tuple(t for t in transfers if t.paths))


def _newest_step(hosts: Sequence[HostCheckpoints]) -> Choice:
    """Choose the newest step. One host of the attempt needs it; the trainer's ranks then share it."""
    source = max(hosts, key=lambda host: (host.step, host.rank is not None))
    name = source.newest.rpartition("/")[2]
    target = next((host for host in hosts if host.rank is not None), None)
    if source.rank is not None or target is None:
        return Choice(source, name)
    return Choice(source, name, (Transfer(source, target, (source.newest,), name),))


def _missing_files(source: HostCheckpoints, target: HostCheckpoints) -> Transfer:
    paths = [
        path
        for path, file in source.files.items()
        if target is not source and not _has(target, path, file)
    ]
    return Transfer(source, target, tuple(sorted(paths)), f"{len(paths)} files")


def _has(target: HostCheckpoints, path: str, file: File) -> bool:
    """Return whether the target has the file. A node keeps its own files, such as its own shard."""
    own = target.files.get(path)
    return own is not None and (target.same_rank or own == file)
