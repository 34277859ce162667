"""Decide which of several runs may use a GPU or a master port. Pure: the input is one host's nodes.

A launch claims the GPUs of its nodes by creating the nodes, labeled with the GPUs' UUIDs and the
time of the request. It starts none of them until it has created all of them and then listed the
nodes on every host. Two launches can never both start on one GPU: on the GPU's host, the launch
that lists last sees the other's node. It goes ahead only once that node is gone, and then the
other cannot start.

A launch that sees an earlier claim gives up and removes what it created. A launch that sees a later
claim looks again until that launch has given up or started, so the earliest of several launches is
never refused because of one that gives up. Launches only wait for later ones, so they never
deadlock.

A launch that is waiting in line leaves a ticket on each host, which stops only later launches. A run
that may restart also holds a ticket for each of its nodes, which counts once that node has ended.
"""

import datetime
from collections.abc import Collection, Iterable, Mapping

from ..text import numbered
from .status import UNSTARTED, ContainerState, NodeStatus


def rivals(run_id: str, wanted: Collection[str], listed: Iterable[NodeStatus]) -> list[NodeStatus]:
    """Return other runs' nodes and tickets that use or want some of `wanted` on this host."""
    return [
        status
        for status in without_idle_tickets(listed)
        if status.run_id != run_id
        and (status.alive or status.state in UNSTARTED)
        and not status.resources.isdisjoint(wanted)
    ]


def without_idle_tickets(listed: Iterable[NodeStatus]) -> list[NodeStatus]:
    """Return `listed` without the tickets of live nodes, which already have what the tickets reserve."""
    listed = list(listed)
    alive = {(each.host, each.run_id, each.node_rank) for each in listed if each.alive}
    return [
        each
        for each in listed
        if not each.is_ticket or (each.host, each.run_id, each.node_rank) not in alive
    ]


def goes_first(rival: NodeStatus, key: tuple[float, str]) -> bool:
    """Return whether the rival goes before our run. key: when our run asked, and our run id."""
    if rival.state is ContainerState.REMOVING or rival.expired:
        return False
    return rival.alive or (rival.since, rival.run_id) < key


def undecided(rival: NodeStatus) -> bool:
    """Return whether the rival is about to start or to disappear."""
    if rival.state is ContainerState.CREATED:
        return not rival.expired
    return rival.state is ContainerState.REMOVING


def taken(wanted: Collection[str], gpu_ids: Mapping[str, int], rival: NodeStatus) -> str:
    """Describe a rival's run: which of `wanted` it has or is waiting for, and since when."""
    shared = rival.resources & set(wanted)
    gpus = [gpu_ids[uuid] for uuid in shared if uuid in gpu_ids]
    what = [numbered("GPU", gpus)] if gpus else []
    what += sorted(resource for resource in shared if resource not in gpu_ids)
    has = "has" if rival.alive else "is waiting for" if rival.is_ticket else "is about to use"
    when = ""
    if since := rival.since or rival.started:
        moment = datetime.datetime.fromtimestamp(since, datetime.UTC)
        when = f" (since {moment:%Y-%m-%dT%H:%M:%SZ})"
    return f"run {rival.run_id} ({rival.owner}) {has} {' and '.join(what)}{when}"
