"""Rules between values of a hosts file that are each valid on their own."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .model import Host, Job
from .problems import Problem, shown

_SSH_KEYS = ("user", "port", "identity_file", "proxy_jump", "host_keys")
_CONTAINER_KEYS = ("mounts", "tmpfs", "devices", "cap_add", "ulimits")


@dataclass(frozen=True)
class Entry:
    """A host with its position in the file. own: its own keys, without defaults."""

    key: str
    line: int
    own: frozenset[str]
    host: Host


def broken_rules(
    entries: Sequence[Entry], job: Job, lines: Mapping[str, int] | None = None
) -> Iterator[Problem]:
    """Yield a problem per broken rule. lines: the line number of each key of the job."""
    by_machine: dict[tuple[str, int], list[Entry]] = {}
    by_address: dict[str, Entry] = {}
    for entry in entries:
        yield from _entry_rules(entry, job)
        same = by_machine.setdefault(entry.host.machine, [])
        yield from _shared_gpus(same, entry)
        same.append(entry)
        if address := entry.host.internal_ip:
            first = by_address.setdefault(address, entry)
            yield from _shared_address(address, first, entry)
    yield from _container_rules(job, lines or {})


def _entry_rules(entry: Entry, job: Job) -> Iterator[Problem]:
    host = entry.host
    ssh_keys = [key for key in _SSH_KEYS if key in entry.own]
    if host.is_local and ssh_keys:
        yield Problem(
            entry.line,
            f"{entry.key}.{ssh_keys[0]}",
            f"found {', '.join(ssh_keys)} on host: local",
            "remove it: this machine is used without SSH",
            "gpus, internal_ip and interface on local",
        )
    if job.engine == "process" and not host.is_local:
        yield Problem(
            entry.line,
            f"{entry.key}.host",
            f"found {host.name} with engine: process",
            "use host: local, or engine: docker for other machines",
            "host: local with engine: process",
        )
    count = len(host.gpu_ids)
    key, wanted = f"{entry.key}.nproc_per_node", host.nproc_per_node
    if wanted is None:
        key, wanted = "job.nproc_per_node", job.nproc_per_node or 0
    if 0 < count < wanted:
        yield Problem(
            entry.line,
            f"{entry.key}.gpus",
            f"found {count} GPU{'s' if count > 1 else ''} for {key} {wanted}",
            f"give it {wanted} GPUs or set nproc_per_node: {count}",
            "at most one process per GPU",
        )


def _shared_gpus(earlier: Sequence[Entry], entry: Entry) -> Iterator[Problem]:
    """Require entries on one machine to list GPU ids that do not overlap, or to use none."""
    mine = entry.host
    for other in earlier if mine.gpus != 0 else ():
        theirs = other.host
        if theirs.gpus == 0:
            continue
        if isinstance(mine.gpus, tuple) and isinstance(theirs.gpus, tuple):
            shared = sorted(set(mine.gpus) & set(theirs.gpus))
            if not shared:
                continue
            what = f"found GPU {', '.join(map(str, shared))} of {mine.name} on two nodes"
        else:
            what = f"found {mine.name} twice, "
            what += f"with gpus: {theirs.written_gpus} and gpus: {mine.written_gpus}"
        yield Problem(
            entry.line,
            entry.key,
            f"{what} (first on line {other.line})" if other.line else what,
            "remove one, or write for example gpus: [0, 1] and gpus: [2, 3]",
            "the same machine twice only with different GPU ids, or gpus: 0",
        )
        return


def _shared_address(address: str, first: Entry, entry: Entry) -> Iterator[Problem]:
    loopback = ipaddress.ip_address(address).is_loopback
    if first.host.machine != entry.host.machine and not loopback:
        yield Problem(
            entry.line,
            f"{entry.key}.internal_ip",
            f"found {address}, which {first.key} has too (line {first.line})",
            "write each machine's own address",
            "one machine per address",
        )


def _container_rules(job: Job, lines: Mapping[str, int]) -> Iterator[Problem]:
    for key in _CONTAINER_KEYS if job.engine == "process" else ():
        if getattr(job, key):
            what = f"found {key} with engine: process, which has no container"
            remedy = "remove it, or use engine: docker"
            yield Problem(lines.get(key, 0), f"job.{key}", what, remedy)
    taken = {"dataset": job.dataset and "/data/", "workdir": job.workdir and "/workspace/"}
    targets = [("mounts", mount.split(":")[1]) for mount in job.mounts]
    targets += [("tmpfs", folder) for folder in job.tmpfs]
    mounted = {target.rstrip("/") for key, target in targets if key == "mounts"}
    for kind, target in targets:
        flat = target.rstrip("/")
        for key, own in taken.items():
            if own and f"{flat}/".startswith(own):
                what = f"found a mount at {own.rstrip('/')}, where {key} is mounted"
                remedy = f"choose another target or remove {key}"
                yield Problem(lines.get(kind, 0), f"job.{kind}", what, remedy)
        if kind == "tmpfs" and flat in mounted:
            what = f"found {shown(flat)}, which is also in job.mounts"
            yield Problem(lines.get(kind, 0), "job.tmpfs", what, "keep one of them")
