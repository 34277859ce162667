"""A record for a run that another machine started.

Hosts, users, identities, the engine and the command come from the user's own hosts file. The hosts
contribute plain values only: which nodes ran there, attempts, states, times and digests.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import DdpctlError, UsageError
from ..facts.shared_homes import OWN
from ..hosts import Cluster, dump
from ..logs.events import parsed
from ..ssh.many import one_per_account, try_each
from ..ssh.node import Node
from ..state import make_folder, write_atomically
from ..terminal.console import Console
from .record import (
    AttemptRecord,
    NodeRecord,
    RunFolder,
    RunRecord,
    parse_timestamp,
)

# The attempts of run $1 on this host as NODE/attempt-N, an empty line, the newest one's run.json.
REPORT = (
    OWN
    + r"""
cd "$HOME/.ddpctl/runs/$1/nodes" 2>/dev/null || exit 0
for attempt in $(ls -trd */attempt-*); do
  if own "$attempt"; then echo "$attempt"; newest=$attempt; fi
done
echo
cat "${newest:-.}/run.json"
"""
)
ATTEMPT = re.compile(r"(\d{1,4})/attempt-(\d{1,4})")
STATES = ("PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED")
DIGEST = re.compile(r"[a-z0-9:]{1,100}")


@dataclass(frozen=True)
class ReportedAttempt:
    """What a host's record may say of an attempt."""

    attempt: int
    state: str = "UNKNOWN"
    created: str = ""
    started: str | None = None
    ended: str | None = None
    world_size: int = 0


@dataclass(frozen=True)
class ReportedRun:
    """What a host's record may say of a run."""

    image_digest: str | None = None
    dataset_digest: str | None = None
    workdir_digest: str | None = None
    attempts: list[ReportedAttempt] = field(default_factory=list)


@dataclass(frozen=True)
class Report:
    """One host: the newest attempt of each of its node ranks, and its record if it is sound."""

    attempts: Mapping[int, int]
    run: ReportedRun


def adopt(folder: RunFolder, nodes: Sequence[Node], cluster: Cluster, console: Console) -> None:
    """Writes run.json and hosts.yaml. Raises UsageError when the file lacks a host of the run."""
    record, ranks = ask_for_record(folder.run_id, nodes, cluster, console)
    # the values of env may be secrets: a resume reads them from the user's file again
    job = dataclasses.replace(cluster.job, env={})
    hosts = dataclasses.replace(cluster, hosts=tuple(node.host for node in ranks), job=job)
    make_folder(folder.logs)
    write_atomically(folder.hosts_file, dump(hosts))
    folder.save(record)


def ask_for_record(
    run_id: str, nodes: Sequence[Node], cluster: Cluster, console: Console
) -> tuple[RunRecord, list[Node]]:
    """The run as its hosts report it, and its nodes in rank order."""

    def ask(node: Node) -> Report:
        return parse_report(node.script(REPORT, run_id).stdout)

    reports, failures = try_each(one_per_account(nodes), ask)
    newest = max((max(r.attempts.values(), default=0) for r in reports.values()), default=0)
    source = next((n for n, r in reports.items() if newest in r.attempts.values()), None)
    if source is None:
        raise UsageError(
            f"no host has a folder of {run_id}; only `ddpctl kill` works on such a run"
        )
    ranks = by_rank(nodes, reports, newest, failures, cluster.source)
    record = record_of(run_id, cluster, reports[source].run, newest)
    record.hosts = [node.name for node in ranks]
    record.attempt.nodes = [
        NodeRecord(rank, node.name, _run_dir(node, run_id, node not in failures))
        for rank, node in enumerate(ranks)
    ]
    console.say(
        f"{run_id}: attempt {newest} on {len(ranks)} nodes, according to {source.name}; this machine "
        "has no record of it"
    )
    return record, ranks


def parse_report(text: bytes) -> Report:
    """What REPORT printed; anything that is not as expected is left out."""
    listed, _, document = text.decode(errors="replace").partition("\n\n")
    attempts: dict[int, int] = {}
    for line in listed.splitlines():
        if match := ATTEMPT.fullmatch(line.strip()):
            rank, attempt = int(match[1]), int(match[2])
            attempts[rank] = max(attempts.get(rank, 0), attempt)
    try:
        run = parsed(ReportedRun, json.loads(document))
    except (ValueError, RecursionError):
        run = ReportedRun()
    return Report(attempts, run)


def by_rank(
    nodes: Sequence[Node],
    reports: Mapping[Node, Report],
    newest: int,
    failures: Mapping[Node, DdpctlError],
    source: str,
) -> list[Node]:
    """The nodes of attempt `newest` in rank order. Hosts that did not answer fill the gaps in the
    file's order."""
    spare = {account: list(group) for account, group in _by_account(nodes).items()}
    found: dict[int, Node] = {}
    for node, report in reports.items():
        for rank in sorted(rank for rank, n in report.attempts.items() if n == newest):
            if rank in found:
                raise UsageError(f"{found[rank].name} and {node.name} both claim node {rank}")
            if not spare[node.host.account]:
                raise UsageError(f"{source}: name {node.name} once for each node of the run there")
            found[rank] = spare[node.host.account].pop(0)
    silent = [node for failed in failures for node in spare[failed.host.account]]
    for rank in range(max(found)):
        if rank not in found:
            if not silent:
                raise UsageError(f"{source}: node {rank} of the run is on none of these hosts")
            found[rank] = silent.pop(0)
    return [found[rank] for rank in sorted(found)]


def _by_account(nodes: Sequence[Node]) -> dict[object, list[Node]]:
    groups: dict[object, list[Node]] = {}
    for node in nodes:
        groups.setdefault(node.host.account, []).append(node)
    return groups


def record_of(run_id: str, cluster: Cluster, run: ReportedRun, newest: int) -> RunRecord:
    """Attempts 1 to `newest`; those that the host does not describe soundly are UNKNOWN."""
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


def _run_dir(node: Node, run_id: str, answers: bool) -> str:
    home = f"{node.home()}/" if answers else ""  # commands start in the home folder
    return f"{home}.ddpctl/runs/{run_id}"
