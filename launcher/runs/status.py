"""What `ps` shows: the nodes of runs on all hosts, and which hosts could not be seen."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from launcher.engines.base import NodeStatus
from launcher.errors import DdpctlError
from launcher.hosts import Cluster, load
from launcher.runs.find import look
from launcher.runs.record import FINAL, run_folders
from launcher.ssh.node import Node, connected


def clusters_to_ask(hosts: str | None, *, everything: bool) -> list[Cluster]:
    """The hosts file's cluster; without one, those of the runs that this machine remembers."""
    if hosts is not None:
        return [load(hosts, job_files=False)]
    folders = [f for f in run_folders() if everything or f.load().state not in FINAL]
    return [load(folder.hosts_file, job_files=False) for folder in folders]


Connected = Sequence[tuple[Cluster, list[Node]]]


@contextmanager
def all_connected(clusters: Iterable[Cluster]) -> Iterator[Connected]:
    """The clusters with their nodes, whose connections last until the end."""
    with ExitStack() as stack:
        yield [(each, stack.enter_context(connected(each.hosts))) for each in clusters]


def see(clusters: Connected) -> tuple[list[NodeStatus], dict[str, DdpctlError]]:
    """All nodes of runs on all these hosts, each once, the newest run first."""
    found: dict[tuple[str, str], NodeStatus] = {}
    failures: dict[str, DdpctlError] = {}
    for cluster, nodes in clusters:
        statuses, failed = look(nodes, cluster)
        found |= {(status.host, status.handle): status for status in statuses}
        failures |= failed
    newest: dict[str, float] = {}
    for status in found.values():
        newest[status.run_id] = max(newest.get(status.run_id, 0.0), status.started or 0.0)
    ordered = sorted(found.values(), key=lambda s: (-newest[s.run_id], s.run_id, s.node_rank))
    return ordered, failures


def document(statuses: Sequence[NodeStatus], failures: Mapping[str, DdpctlError]) -> dict[str, Any]:
    """ps --json, version 1: runs with their nodes, and the hosts that were not seen."""
    runs: dict[str, dict[str, Any]] = {}
    for status in statuses:
        run = runs.setdefault(
            status.run_id,
            {
                "run_id": status.run_id,
                "name": status.name,
                "attempt": status.attempt,
                "nnodes": status.nnodes,
                "owner": status.owner,
                "nodes": [],
            },
        )
        node = dataclasses.asdict(status)
        for key in ("run_id", "name", "nnodes", "owner"):
            del node[key]
        run["nodes"].append(node)
    for run in runs.values():
        run["state"] = run_state(run["nodes"], run["nnodes"])
    unseen = [{"host": host, "error": str(error)} for host, error in failures.items()]
    return {"version": 1, "runs": list(runs.values()), "unseen": unseen}


def run_state(nodes: Sequence[Mapping[str, Any]], nnodes: int) -> str:
    """What the engines' view of a run's nodes amounts to."""
    states = {node["state"] for node in nodes}
    if states & {"running", "paused", "restarting"}:
        return "RUNNING"
    if states == {"created"}:
        return "PENDING"
    codes = [node["exit_code"] for node in nodes]
    if any(code not in (0, None) for code in codes):
        return "FAILED"
    return "SUCCEEDED" if len(codes) == nnodes and set(codes) == {0} else "UNKNOWN"
