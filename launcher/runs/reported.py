"""Read runs as their hosts report them, from the folders that remain after `kill`.

Only plain values are taken from hosts: which nodes ran on them, attempts, states, times and digests.
Malformed values are left out.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ..budget import parse_json
from ..engines.status import ContainerState, NodeStatus, host_text
from ..errors import DdpctlError
from ..logs.event_reader import parsed
from ..logs.journal_reader import JournalReader
from ..logs.log_entry import events_in
from ..plan.plan import STORE, place_in, run_dir_in
from ..run_id import is_run_id
from ..ssh.host_connection import LONG_OUTPUT, HostConnection
from ..ssh.many import one_per_account, try_each
from ..ssh.script_files import load_script
from ..supervisor.events import End, EndState

LIST = load_script(__file__, "reported_nodes.sh")
HEAD = re.compile(r"(\S{1,64}) (\d{1,4}) ([1-9]\d{0,3}) ([01]) (\d{1,10})")


@dataclass(frozen=True)
class ReportedAttempt:
    """The fields of an attempt that are taken from a host's run.json."""

    attempt: int
    state: str = ""
    created: str = ""
    started: str | None = None
    ended: str | None = None
    world_size: int = 0


@dataclass(frozen=True)
class ReportedRun:
    """The fields of a run that are taken from a host's run.json."""

    name: str = ""
    owner: str = ""
    hosts: list[str] = field(default_factory=list)
    image_digest: str | None = None
    dataset_digest: str | None = None
    workdir_digest: str | None = None
    attempts: list[ReportedAttempt] = field(default_factory=list)


Report = tuple[NodeStatus, ReportedRun]  # one node's newest attempt, and its run


def reported_nodes(
    connections: Sequence[HostConnection], run_id: str = ""
) -> tuple[dict[HostConnection, list[Report]], dict[HostConnection, DdpctlError]]:
    """Return each host's reports on one run or on all runs, and the errors of the other hosts."""
    return try_each(one_per_account(connections), lambda each: reports_of(each, run_id))


def reports_of(connection: HostConnection, run_id: str = "") -> list[Report]:
    """Return one host's reports on one run or on all runs."""
    listed = connection.script(LIST, run_id, timeout=60.0, limit=LONG_OUTPUT).stdout
    reports = parse_reports(listed, connection.name)
    return [report for report in reports if run_id in ("", report[0].run_id)]


def parse_reports(text: bytes, host: str) -> Iterator[Report]:
    """Yield the well-formed reports in LIST's output. A malformed run.json counts as empty.

    A node's state is UNKNOWN, EXITED or CANCELLED.
    """
    rows = text.decode(errors="replace").split("\n")
    for head, document, record in zip(rows[::3], rows[1::3], rows[2::3], strict=False):
        match = HEAD.fullmatch(head)
        if not match or not is_run_id(match[1]):
            continue
        run_id, (rank, attempt, marked, written) = match[1], map(int, match.groups()[1:])
        try:
            run = parsed(ReportedRun, parse_json(document.encode()))
        except ValueError:
            run = ReportedRun()
        events = events_in(JournalReader().feed(record.encode() + b"\n"))
        end = next((event for _, event in events if isinstance(event, End)), None)
        state = ContainerState.EXITED if end else ContainerState.UNKNOWN
        if end.state is EndState.CANCELLED if end else marked:
            state = ContainerState.CANCELLED
        status = NodeStatus(
            attempt=attempt,
            node_rank=rank,
            host=host,
            handle=place_in(run_dir_in(STORE, run_id), run_id, rank, attempt).control_dir,
            state=state,
            exit_code=end.exit_code if end else None,
            run_id=run_id,
            name=host_text(run.name),
            nnodes=max(len(run.hosts), rank + 1),
            owner=host_text(run.owner),
            ended=float(written),
        )
        yield status, run


def agreed_attempt(newest: Iterable[int]) -> int:
    """Return the newest attempt that two hosts confirm or, if only one host has the run, its newest.

    newest: the newest attempt on each host. A host that the run no longer uses still reports an
    older attempt. A later attempt that no other host confirms does not count, so that one host
    alone cannot hide the attempt of all others.
    """
    first, *others = sorted(newest, reverse=True)
    return others[0] if others else first


def ended_nodes(connections: Sequence[HostConnection]) -> list[NodeStatus]:
    """Return each run's ended nodes, without attempts older than its `agreed_attempt`."""
    by_host, _ = reported_nodes(connections)
    newest: dict[str, dict[HostConnection, int]] = {}  # by run
    for connection, reports in by_host.items():
        for status, _ in reports:
            own = newest.setdefault(status.run_id, {})
            own[connection] = max(own.get(connection, 0), status.attempt)
    agreed = {run_id: agreed_attempt(own.values()) for run_id, own in newest.items()}
    statuses = [status for reports in by_host.values() for status, _ in reports]
    return [s for s in statuses if not s.alive and s.attempt >= agreed[s.run_id]]
