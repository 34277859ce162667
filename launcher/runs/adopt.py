"""Create a record for a run that another machine started.

Hosts, users, identities, the engine and the command come from the user's own hosts file. The hosts
contribute only plain values: which nodes ran there, attempts, states, times and digests.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence

from ..errors import UsageError
from ..hosts import Cluster
from ..ssh.node import Node
from ..terminal.console import Console
from .kept_cluster import keep_cluster
from .record import AttemptRecord, NodeRecord, RunFolder, RunRecord, parse_timestamp
from .reported import ReportedAttempt, ReportedRun, reported_nodes

STATES = ("PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED")
DIGEST = re.compile(r"[a-z0-9:]{1,100}")


def adopt(folder: RunFolder, nodes: Sequence[Node], cluster: Cluster, console: Console) -> None:
    """Write run.json and hosts.yaml. Raises UsageError if the file lacks a host of the run."""
    record, ranks = ask_for_record(folder.run_id, nodes, cluster, console)
    # values of env may be secret; a resume reads them from the user's file again
    job = dataclasses.replace(cluster.job, env={})
    hosts = dataclasses.replace(cluster, hosts=tuple(node.host for node in ranks), job=job)
    keep_cluster(folder, hosts)
    folder.save(record)


def ask_for_record(
    run_id: str, nodes: Sequence[Node], cluster: Cluster, console: Console
) -> tuple[RunRecord, list[Node]]:
    """Build the record from the hosts' reports. Also return the nodes in rank order."""
    found, failures = reported_nodes(nodes, run_id)
    rows = [(node, row) for node, reported in found.items() for row in reported]
    if not rows:
        raise UsageError(f"no host has files of {run_id}; only `ddpctl kill` works on such a run")
    source, newest = max(rows, key=lambda pair: pair[1].attempt)
    there = {
        node: [row.node_rank for row in reported if row.attempt == newest.attempt]
        for node, reported in found.items()
    }
    ranks = by_rank(nodes, there, failures, cluster.source)
    record = record_of(run_id, cluster, newest.run, newest.attempt)
    record.hosts = [node.name for node in ranks]
    silent = {node.host.account for node in failures}
    for rank, node in enumerate(ranks):
        # commands start in the home folder
        home = "" if node.host.account in silent else f"{node.home()}/"
        record.attempt.nodes.append(NodeRecord(rank, node.name, f"{home}.ddpctl/runs/{run_id}"))
    console.say(
        f"{run_id}: attempt {newest.attempt} on {len(ranks)} nodes, according to {source.name}; this "
        "machine has no record of it"
    )
    return record, ranks


def by_rank(
    nodes: Sequence[Node],
    there: Mapping[Node, Sequence[int]],
    failures: Collection[Node],
    source: str,
) -> list[Node]:
    """Return the nodes in rank order. Silent hosts fill the gaps, in the file's order.

    there: node ranks of the newest attempt on each host that answered.
    """
    spare: dict[object, list[Node]] = {}  # by account
    for node in nodes:
        spare.setdefault(node.host.account, []).append(node)
    found: dict[int, Node] = {}
    for node, reported in there.items():
        for rank in sorted(reported):
            if rank in found:
                raise UsageError(f"{found[rank].name} and {node.name} both claim node {rank}")
            if not spare[node.host.account]:
                raise UsageError(f"{source}: list {node.name} once for each node of the run on it")
            found[rank] = spare[node.host.account].pop(0)
    silent = [node for failed in failures for node in spare[failed.host.account]]
    for rank in range(max(found)):
        if rank not in found:
            if not silent:
                raise UsageError(f"{source}: node {rank} of the run is on none of these hosts")
            found[rank] = silent.pop(0)
    return [found[rank] for rank in sorted(found)]


def record_of(run_id: str, cluster: Cluster, run: ReportedRun, newest: int) -> RunRecord:
    """Return a record with attempts 1 to `newest`. Attempts without a valid description are UNKNOWN."""
    reported = {entry.attempt: entry for entry in run.attempts}
    return RunRecord(
        run_id=run_id,
        name="",
        owner="",
        engine=cluster.job.engine,
        hosts=[],
        image=cluster.job.image,
        image_digest=_digest(run.image_digest),
        dataset_digest=_digest(run.dataset_digest),
        workdir_digest=_digest(run.workdir_digest),
        command=list(cluster.job.command),
        stop_timeout=cluster.job.stop_timeout,
        attempts=[_attempt(reported.get(n, ReportedAttempt(n))) for n in range(1, newest + 1)],
        adopted=True,
    )


def _attempt(entry: ReportedAttempt) -> AttemptRecord:
    return AttemptRecord(
        attempt=entry.attempt,
        state=entry.state if entry.state in STATES else "UNKNOWN",
        created=_time(entry.created) or "",
        nodes=[],
        world_size=max(0, entry.world_size),
        master_addr="",
        master_port=0,
        started=_time(entry.started),
        ended=_time(entry.ended),
    )


def _time(text: str | None) -> str | None:
    return text if parse_timestamp(text) is not None else None


def _digest(text: str | None) -> str | None:
    return text if text and DIGEST.fullmatch(text) else None
