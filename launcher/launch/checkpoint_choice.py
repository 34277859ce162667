"""Which checkpoint an attempt goes on from, and which hosts must be given it. Pure.

Two kinds are told apart. Folders `ckpt/step-N` with a MANIFEST, as our trainer writes them, are whole when
the digests say so; the newest one that is whole counts, wherever it lies. Of a foreign script all that
is known is that its checkpoints are the files there: those of the host that wrote last count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class File:
    time: int  # of its last change, unix seconds of the host's clock
    size: int  # bytes


@dataclass(frozen=True)
class Step:
    """A checkpoint of which every byte is as its MANIFEST says."""

    path: str  # ckpt/step-00000012
    identity: str  # equal where all of its bytes are equal

    @property
    def number(self) -> int:
        return int(self.path.rpartition("-")[2])


@dataclass(frozen=True)
class Held:
    """What one host has of a run's checkpoints."""

    host: str
    rank: int | None  # of the node that it is now; None: it is no part of the next attempt
    same_place: bool  # it had that rank in the last attempt too, so what it wrote is its own
    whole: Step | None = None  # the newest
    damaged: tuple[str, ...] = ()  # newer ones that are not whole
    files: Mapping[str, File] = field(default_factory=dict)  # by path, hidden ones left out


@dataclass(frozen=True)
class Gift:
    source: Held
    target: Held
    paths: tuple[str, ...]  # folders or files; what the target has there is put aside
    what: str  # for people


@dataclass(frozen=True)
class Choice:
    """`source` has what the attempt goes on from; None: nobody has anything."""

    source: Held | None
    what: str
    gifts: tuple[Gift, ...] = ()


def choose(hosts: Sequence[Held]) -> Choice:
    """hosts: those of the next attempt and those of the one before, in rank order."""
    if any(host.whole for host in hosts):
        return _newest_whole(hosts)
    written = [host for host in hosts if host.files]
    if not written:
        return Choice(None, "")
    source = max(written, key=lambda host: max(file.time for file in host.files.values()))
    gifts = [_missing(source, host) for host in hosts if host.rank is not None]
    return Choice(source, "its newest files", tuple(gift for gift in gifts if gift.paths))


def _newest_whole(hosts: Sequence[Held]) -> Choice:
    """The trainer's ranks hand a checkpoint on by themselves, faster than we could: it is enough
    that one of the attempt's own hosts has it."""
    newest = max(host.whole.number for host in hosts if host.whole)
    holders = [host for host in hosts if host.whole and host.whole.number == newest]
    inside = [host for host in holders if host.rank is not None]
    source = (inside or holders)[0]
    assert source.whole is not None
    name = source.whole.path.rpartition("/")[2]
    target = next((host for host in hosts if host.rank is not None), None)
    if inside or target is None:
        return Choice(source, name)
    return Choice(source, name, (Gift(source, target, (source.whole.path,), name),))


def _missing(source: Held, target: Held) -> Gift:
    """What a node wrote itself, in this same place, it keeps; its own shard may have any name."""
    paths = [
        path
        for path, file in source.files.items()
        if target is not source and not _has(target, path, file)
    ]
    return Gift(source, target, tuple(sorted(paths)), f"{len(paths)} files")


def _has(target: Held, path: str, file: File) -> bool:
    mine = target.files.get(path)
    return mine is not None and (target.same_place or mine == file)
