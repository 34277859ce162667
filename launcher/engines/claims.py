"""Which of several runs may use a GPU: pure rules over what the engine of one host lists. A master
port is shared out in the same way.

A launch claims the GPUs of its nodes by creating them, labelled with the GPUs' UUIDs and with the
time when it asked for them. It starts nothing before it has created all nodes and then listed every
host. Two launches can never both start on one GPU: on the GPU's host, the one that lists last sees
the other. What it sees there, it may pass only if it removed it, and then the other cannot start.

A launch that sees an earlier one gives up and removes what it created. A launch that sees a later
one looks again until that one has given up or started. So the earliest of several is never refused
by another that does not run, and launches wait only for later ones: there is no deadlock.

A launch that waits in line leaves a ticket on each host, which stops later launches only.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Mapping

from ..hosts.fold import ranges
from .status import UNSTARTED, NodeStatus


def rivals(run_id: str, wanted: Collection[str], listed: Iterable[NodeStatus]) -> list[NodeStatus]:
    """Nodes of other runs, and places in line, that use or want some of `wanted` on this host."""
    return [
        status
        for status in listed
        if status.run_id != run_id
        and (status.alive or status.state in UNSTARTED)
        and not status.resources.isdisjoint(wanted)
    ]


def goes_first(rival: NodeStatus, key: tuple[float, str]) -> bool:
    """Whether a rival comes before the run with this key: when it asked for its GPUs, and its id."""
    if rival.state == "removing" or rival.expired:
        return False
    return rival.alive or (rival.since, rival.run_id) < key


def undecided(rival: NodeStatus) -> bool:
    """Whether a rival that does not go first is about to start, to give up or to be gone."""
    return rival.state == "removing" or (rival.state == "created" and not rival.expired)


def taken(wanted: Collection[str], gpu_ids: Mapping[str, int], rival: NodeStatus) -> str:
    """Whose run has which of `wanted`, or waits for it, since when."""
    shared = rival.resources & set(wanted)
    gpus = [gpu_ids[uuid] for uuid in shared if uuid in gpu_ids]
    what = [f"GPU {ranges(gpus)}"] if gpus else []
    what += sorted(resource for resource in shared if resource not in gpu_ids)
    has = "has" if rival.alive else "waits for" if rival.state == "waiting" else "is about to use"
    since = rival.since or rival.started
    when = f" since {_moment(since)}" if since else ""
    return f"run {rival.run_id} of {rival.owner} {has} {' and '.join(what)}{when}"


def _moment(seconds: float) -> str:
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"
