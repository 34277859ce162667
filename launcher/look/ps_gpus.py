"""Find who uses which GPU, by joining the hosts' reports with the nodes of runs. Pure."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..engines.status import ContainerState, NodeStatus
from ..facts.nvidia import BUSY, BUSY_MIB, IDLE, GpuUse, Process
from ..text import counted, names, ranges, rfc3339

GIB = 1024
GPU_HEAD = ["GPUS", "ON", "USE", "MEMORY", "USED BY", "OWNER", "SINCE"]


@dataclass(frozen=True)
class GpuRow:
    """A GPU. node: the node of a run that claimed or uses it. others: processes outside that run."""

    host: str
    gpu: GpuUse
    node: NodeStatus | None
    others: tuple[Process, ...] = ()

    @property
    def is_free(self) -> bool:
        return not (self.node or self.others or (self.gpu.used or 0) >= BUSY_MIB)


def joined(gpus: Mapping[str, Sequence[GpuUse]], statuses: Iterable[NodeStatus]) -> list[GpuRow]:
    """Return a row per GPU, in the order of the hosts. gpus: the GPUs by host.

    Two hosts-file entries for one machine report the same GPUs, which are shown once. A host cannot hide
    another machine's GPUs by claiming them, because it does not know that machine's boot id.
    """
    live = [status for status in statuses if status.alive or status.state is ContainerState.CREATED]
    rows: dict[tuple[str, str], GpuRow] = {}  # by machine and UUID
    for host, reports in gpus.items():
        here = [status for status in live if status.host == host]
        by_container = {status.container: status for status in here if status.container}
        by_run = {status.run_id: status for status in reversed(here)}
        for gpu in reports:
            owners = [by_container.get(p.container) or by_run.get(p.run_id) for p in gpu.processes]
            claims = [status for status in here if gpu.uuid in status.gpus]
            node = next((status for status in (*claims, *owners) if status), None)
            others = tuple(
                process
                for process, owner in zip(gpu.processes, owners, strict=True)
                if not owner or not node or owner.run_id != node.run_id
            )
            rows.setdefault((gpu.boot_id or host, gpu.uuid), GpuRow(host, gpu, node, others))
    return list(rows.values())


def summary(rows: Sequence[GpuRow]) -> str:
    """Return a summary: `8 GPUs on 2 hosts: 4 used by 1 run, 1 by other processes, 3 free`."""
    runs = {row.node.run_id for row in rows if row.node}
    used = sum(row.node is not None for row in rows)
    free = sum(row.is_free for row in rows)
    hosts = len({row.host for row in rows})
    gpus = f"{counted(len(rows), 'GPU')} on {counted(hosts, 'host')}"
    ours = f"{used} used by {counted(len(runs), 'run')}"
    return f"{gpus}: {ours}, {len(rows) - used - free} by other processes, {free} free"


def folded(rows: Sequence[GpuRow]) -> Iterator[list[str]]:
    """Yield the cells of a row (see GPU_HEAD) for each group of GPUs with the same use.

    Groups that need attention come first: GPUs that others use, then idle GPUs of a busy run. Free
    GPUs come last.
    """
    busy = {r.node.run_id for r in rows if r.node and (r.gpu.use or 0) >= BUSY}
    by_host: dict[tuple[str, object], list[GpuRow]] = {}
    for row in rows:
        by_host.setdefault((row.host, _use(row, busy)), []).append(row)
    groups: dict[tuple[object, str], list[GpuRow]] = {}
    for (_, use), alike in by_host.items():
        groups.setdefault((use, ranges(r.gpu.index for r in alike)), []).extend(alike)
    for (_, indices), alike in sorted(groups.items(), key=lambda item: _oddness(item[1][0], busy)):
        first = alike[0]
        use = [r.gpu.use for r in alike if r.gpu.use is not None]
        used = [round(r.gpu.used / GIB) for r in alike if r.gpu.used is not None]
        total = max(r.gpu.total or 0 for r in alike) / GIB
        if first.node:
            owner, starts = first.node.owner, [r.node.started for r in alike if r.node]
        else:
            owner = next((p.user for p in first.others), "")
            starts = [p.started for r in alike for p in r.others]
        hosts = names(dict.fromkeys(row.host for row in alike))
        memory = _span(used, f"/{total:.0f} GiB")
        since = short_time(min(filter(None, starts), default=None))
        yield [indices, hosts, _span(use, "%"), memory, _user(alike), owner or "-", since]


def _use(row: GpuRow, busy: set[str]) -> object:
    """Return a key that is equal for GPUs of one host that may share a row."""
    strangers = tuple(sorted({(p.user, p.name) for p in row.others}))
    return row.node and row.node.run_id, strangers, row.is_free, _oddness(row, busy)


def _oddness(row: GpuRow, busy: set[str]) -> int:
    """Return the sort key of a row: the more attention the row needs, the smaller the key."""
    if row.node is None:
        return 4 if row.is_free else 1
    if row.others:
        return 0
    idle = row.gpu.use is not None and row.gpu.use < IDLE and row.node.run_id in busy
    return 2 if idle else 3


def _user(alike: Sequence[GpuRow]) -> str:
    first = alike[0]
    if first.is_free:
        return "free"
    pids = sorted({p.pid for row in alike for p in row.others})
    what = ", ".join(dict.fromkeys(p.name or "?" for row in alike for p in row.others))
    strangers = f"{what} ({f'pid {pids[0]}' if len(pids) == 1 else f'{len(pids)} processes'})"
    if first.node is None:
        return strangers if pids else "a process that the driver does not show"
    return f"{first.node.run_id} and {strangers}" if pids else first.node.run_id


def _span(numbers: Sequence[int], unit: str) -> str:
    if not numbers:
        return "-"
    low, high = min(numbers), max(numbers)
    return f"{low}{unit}" if low == high else f"{low}-{high}{unit}"


def short_time(seconds: float | None) -> str:
    """Format unix seconds as `11-22T10:34Z`, or as `-` if unknown."""
    return rfc3339(seconds)[5:16] + "Z" if seconds else "-"


def document(rows: Iterable[GpuRow]) -> list[dict[str, Any]]:
    """Return the `gpus` of `ps --json`."""
    return [
        {
            "host": row.host,
            "index": row.gpu.index,
            "uuid": row.gpu.uuid,
            "name": row.gpu.name,
            "utilization": row.gpu.use,
            "memory_used_mib": row.gpu.used,
            "memory_total_mib": row.gpu.total,
            "run_id": row.node.run_id if row.node else None,
            "owner": row.node.owner if row.node else None,
            "since": row.node.started if row.node else None,
            "free": row.is_free,
            "others": [dataclasses.asdict(process) for process in row.others],
        }
        for row in rows
    ]
