"""The data of `ps`: nodes of runs on all hosts, and the hosts that did not answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..engines.claims import goes_first, rivals
from ..engines.status import NodeStatus
from ..errors import DdpctlError, HostsFileError
from ..hosts import Cluster, load
from ..ssh.node import Node, connected
from ..terminal.console import Console
from .find import list_nodes
from .record import FINAL, run_folders
from .reported import ended_nodes
from .unseen import unseen

DEFAULT_HOSTS = Path("hosts.yaml")
Connected = Sequence[tuple[Cluster, list[Node]]]


def clusters_to_ask(hosts: str | None, console: Console, *, everything: bool) -> list[Cluster]:
    """Return the clusters to query: the hosts file's or, without one, several.

    Those are ./hosts.yaml and the clusters of this machine's runs: live ones, or all. Warns about a
    file or record that cannot be read.
    """
    if hosts is not None:
        return [load(hosts, job_files=False)]
    files = [DEFAULT_HOSTS] if DEFAULT_HOSTS.exists() else []
    for folder in run_folders():
        record = folder.load_if_readable(console)
        if everything or record is None or record.state not in FINAL:
            files.append(folder.hosts_file)
    clusters: dict[object, Cluster] = {}
    for file in files:
        try:
            cluster = load(file, job_files=False)
        except HostsFileError as error:
            console.say(f"warning: {error}")
            continue
        accounts = frozenset(host.account for host in cluster.hosts)
        clusters.setdefault((accounts, cluster.job.engine), cluster)
    return list(clusters.values())


@contextmanager
def all_connected(clusters: Iterable[Cluster]) -> Iterator[Connected]:
    """Connect to the nodes of all clusters; close the connections at the end."""
    with ExitStack() as stack:
        yield [(each, stack.enter_context(connected(each.hosts))) for each in clusters]


def list_runs(
    clusters: Connected, *, everything: bool
) -> tuple[list[NodeStatus], dict[str, DdpctlError]]:
    """Return the nodes of all runs, newest run first, and the errors of silent hosts.

    everything: include runs of which only folders remain, such as killed ones.
    """
    found: dict[tuple[str, str], NodeStatus] = {}
    failures: dict[str, DdpctlError] = {}
    for cluster, nodes in clusters:
        statuses, failed = list_nodes(nodes, cluster)
        found |= {(status.host, status.handle): status for status in statuses}
        failures |= failed
        if everything:
            known = {(s.run_id, s.node_rank, s.attempt): s for s in statuses}
            for status in ended_nodes(nodes):
                container = known.get((status.run_id, status.node_rank, status.attempt))
                if container is None:
                    found.setdefault((status.host, status.handle), status)
                elif status.state == "cancelled" and not container.alive:
                    # the container only shows that it was stopped
                    found[container.host, container.handle] = replace(container, state="cancelled")
    newest = {
        nodes[0].run_id: max(node.started or node.ended or node.since for node in nodes)
        for nodes in by_run(found.values())
    }
    ordered = sorted(found.values(), key=lambda s: (-newest[s.run_id], s.run_id, s.node_rank))
    return ordered, failures


def document(statuses: Sequence[NodeStatus], failures: Mapping[str, DdpctlError]) -> dict[str, Any]:
    """Return the document of `ps --json`, version 1."""
    runs = []
    for nodes in by_run(statuses):
        first = nodes[0]
        of_run = ("run_id", "name", "nnodes", "owner")
        rows = [
            {key: value for key, value in dataclasses.asdict(node).items() if key not in of_run}
            for node in nodes
        ]
        runs.append(
            {
                "run_id": first.run_id,
                "name": first.name,
                "attempt": first.attempt,
                "nnodes": first.nnodes,
                "owner": first.owner,
                "nodes": rows,
                "state": run_state(nodes),
                "waits_for": waits_for(nodes, statuses),
            }
        )
    return {"version": 1, "runs": runs, "unseen": unseen(failures)}


def by_run(statuses: Iterable[NodeStatus]) -> list[list[NodeStatus]]:
    """Group nodes by run, in the order of each run's first node."""
    runs: dict[str, list[NodeStatus]] = {}
    for status in statuses:
        runs.setdefault(status.run_id, []).append(status)
    return list(runs.values())


def waits_for(nodes: Sequence[NodeStatus], everything: Sequence[NodeStatus]) -> list[str]:
    """Return the ids of the runs ahead of a run that waits in line."""
    return sorted(
        {
            rival.run_id
            for node in nodes
            if node.waits
            for rival in rivals(node.run_id, node.resources, everything)
            if rival.host == node.host and goes_first(rival, (node.since, node.run_id))
        }
    )


def run_state(nodes: Sequence[NodeStatus]) -> str:
    if any(node.alive for node in nodes):
        return "RUNNING"
    if any(node.waits for node in nodes):
        return "WAITING"
    if all(node.state == "created" for node in nodes):
        return "PENDING"
    if any(node.state == "cancelled" for node in nodes):
        return "CANCELLED"
    codes = [node.exit_code for node in nodes]
    if any(code not in (0, None) for code in codes):
        return "FAILED"
    return "SUCCEEDED" if len(codes) == nodes[0].nnodes and set(codes) == {0} else "UNKNOWN"
