"""Which checkpoint the next attempt resumes from, and which hosts must be sent it. Pure.

There are two kinds. Folders `ckpt/step-N` with a MANIFEST, as our trainer writes them, are complete
if the digests match; the newest complete one counts, on whichever host it is. Of another script,
ddpctl knows only its files: those of the host that wrote last count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class File:
    time: int  # of its last change, unix seconds of the host's clock
    size: int  # bytes


@dataclass(frozen=True)
class HostCheckpoints:
    """What one host has of a run's checkpoints."""

    host: str
    rank: int | None  # of its node in the next attempt; None: it takes no part
    same_rank: bool  # it had that rank in the last attempt, so what it wrote is its own
    newest: str = ""  # ckpt/step-00000012: the newest whose every byte matches its MANIFEST
    damaged: tuple[str, ...] = ()  # steps after `newest` that are incomplete
    files: Mapping[str, File] = field(default_factory=dict)  # by path, without hidden ones

    @property
    def step(self) -> int:
        """The number of `newest`."""
        return int(self.newest.rpartition("-")[2] or -1)


@dataclass(frozen=True)
class Transfer:
    source: HostCheckpoints
    target: HostCheckpoints
    paths: tuple[str, ...]  # folders or files; what the target has there is kept aside
    what: str  # for messages


@dataclass(frozen=True)
class Choice:
    """source: has what the attempt resumes from; None: no host has a checkpoint."""

    source: HostCheckpoints | None
    what: str
    transfers: tuple[Transfer, ...] = ()


def choose(hosts: Sequence[HostCheckpoints]) -> Choice:
    """hosts: those of the next attempt and those of the last one, in rank order."""
    if any(host.newest for host in hosts):
        return _newest_step(hosts)
    written = [host for host in hosts if host.files]
    if not written:
        return Choice(None, "")
    source = max(written, key=lambda host: max(file.time for file in host.files.values()))
    transfers = [_missing_files(source, host) for host in hosts if host.rank is not None]
    return Choice(source, "the newest checkpoint", tuple(t for t in transfers if t.paths))


def _newest_step(hosts: Sequence[HostCheckpoints]) -> Choice:
    """One of the attempt's hosts needs it; from there the trainer's ranks share it themselves."""
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
    """Return a node keeps what it wrote at the same rank: its own shard may have any content."""
    own = target.files.get(path)
    return own is not None and (target.same_rank or own == file)
