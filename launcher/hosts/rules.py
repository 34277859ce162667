"""Find values of a hosts file that are valid on their own but conflict with each other."""

import ipaddress
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..text import counted, quoted
from .cluster import Host
from .job import Job
from .mistakes import Mistake
from .schema import JOB, PACKAGES_REMEDY

_OWN_FOLDERS = ("/", "/checkpoints", "/output", "/ddpctl", "/ddpctl-metrics", "/ddpctl-cache")


@dataclass(frozen=True)
class HostEntry:
    """A host with its position in a file. source: the file, if it is not the one being read."""

    key: str
    line: int
    host: Host
    source: str = ""

    def mistake(self, key: str, found: str, remedy: str) -> Mistake:
        return Mistake(self.line, self.key + key, f"found {found}", remedy, source=self.source)


def broken_rules(
    entries: Sequence[HostEntry],
    job: Job,
    lines: Mapping[str, int] | None = None,
    nnodes: int | None = None,
) -> Iterator[Mistake]:
    """Yield a mistake per broken rule.

    lines: the line number of each job key, for the mistakes. nnodes: how many hosts there are
    without spares; None if job.min_nodes may be larger.
    """
    by_machine: dict[tuple[str, int], list[HostEntry]] = {}
    by_address: dict[str, HostEntry] = {}
    for entry in entries:
        yield from _entry_rules(entry, job)
        same = by_machine.setdefault(entry.host.machine, [])
        yield from _shared_gpus(same, entry)
        same.append(entry)
        address = entry.host.internal_ip
        if address and not ipaddress.ip_address(address).is_loopback:
            first = by_address.setdefault(address, entry)
            if first.host.machine != entry.host.machine:
                found = f"{address}, which is also the address of {first.key} (line {first.line})"
                yield entry.mistake(".internal_ip", found, "give each machine its own address")
    broken = [*_container_rules(job)]
    if nnodes and nnodes < (job.min_nodes or 0):
        found = f"{job.min_nodes} with only {counted(nnodes, 'host')}"
        broken.append(("min_nodes", found, f"write at most {nnodes}, or list more hosts"))
    for key, found, remedy in broken:
        yield Mistake((lines or {}).get(key, 0), f"job.{key}", f"found {found}", remedy)


def _entry_rules(entry: HostEntry, job: Job) -> Iterator[Mistake]:
    host = entry.host
    count = len(host.gpu_ids)
    key, wanted = f"{entry.key}.nproc_per_node", host.nproc_per_node
    if wanted is None:
        key, wanted = "job.nproc_per_node", job.nproc_per_node or 0
    if 0 < count < wanted:
        found = f"{counted(count, 'GPU')}, but {key} is {wanted}"
        remedy = f"list {wanted} GPUs or set nproc_per_node: {count}"
        yield entry.mistake(".gpus", found, remedy)


def _shared_gpus(earlier: Sequence[HostEntry], entry: HostEntry) -> Iterator[Mistake]:
    """Yield a mistake if `entry` may use a GPU of an earlier entry on the same machine."""
    mine = entry.host
    for other in earlier:
        theirs = other.host
        has_all = "all" in (mine.gpus, theirs.gpus) and 0 not in (mine.gpus, theirs.gpus)
        if has_all or not {*mine.gpu_ids}.isdisjoint(theirs.gpu_ids):
            gpus = f"gpus: {theirs.written_gpus} and gpus: {mine.written_gpus}"
            first = f" (first on line {other.line})" if other.line else ""
            remedy = (
                "give the entries of one machine different GPU ids, such as gpus: [0, 1] and "
                "gpus: [2, 3], or gpus: 0"
            )
            yield entry.mistake("", f"{mine.name} twice, with {gpus}{first}", remedy)
            return


def _container_rules(job: Job) -> Iterator[tuple[str, str, str]]:
    """Yield (job key, what was found there, remedy) for each broken rule."""
    for key, shape in JOB.items():
        engines = shape.get("x-engines", [job.engine])
        if job.engine not in engines and getattr(job, key) != getattr(Job(), key):
            remedy = f"remove it, or set engine: {engines[0]}"
            if key == "requirements":
                remedy += f"; {PACKAGES_REMEDY}"
            yield key, f"{key} with engine: {job.engine}", remedy
    if job.image.endswith(".sif") and job.engine != "apptainer":
        yield "image", f"a .sif file with engine: {job.engine}", "set engine: apptainer"
    if job.python and job.conda:
        yield "conda", "both python and conda", "keep one of them"
    own = dict.fromkeys(_OWN_FOLDERS, "ddpctl's own folders are")
    own |= {"/data": "dataset is"} if job.dataset else {}
    own |= {"/workspace": "workdir is"} if job.workdir else {}
    targets = [("mounts", mount.split(":")[1]) for mount in job.mounts]
    taken: set[str] = set()
    for key, target in [*targets, *(("tmpfs", folder) for folder in job.tmpfs)]:
        flat = os.path.normpath("/" + target.lstrip("/"))
        for folder, what in own.items():
            if flat == folder or flat.startswith(f"{folder}/"):
                found = f"a mount at {quoted(target)}, where {what} mounted"
                yield key, found, "choose another folder in the container"
        if flat in taken:
            yield key, f"two mounts at {quoted(flat)}", "keep one of them"
        taken.add(flat)
