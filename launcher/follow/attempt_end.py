"""Explain why an attempt ended: find its first failure, keep the evidence, and tell the user."""

import time
from collections.abc import Mapping

from ..diagnosis.evidence import Evidence, before_restart
from ..diagnosis.failure_text import failure_text
from ..diagnosis.first_failure import first_failure
from ..engines.node_handle import AttemptHandle
from ..engines.status import ContainerState
from ..errors import StateError
from ..facts.kernel_log import read_kernel_log
from ..failure import FirstFailure
from ..outcomes import RunState
from ..own_folders import write_atomically
from ..runs.record import AttemptRecord, RunRecord, parse_timestamp
from ..runs.reported import reported_nodes
from ..runs.run_folder import RunFolder
from ..ssh.host_connection import HostConnection
from ..ssh.many import try_each
from ..supervisor.events import RestartInPlace
from ..terminal.console import Console
from ..text import duration
from .followed_node import FollowedNode

MOST_RESTARTS = 50  # evidence is kept only for this many of an attempt's newest restarts


def note_killed(handle: AttemptHandle, run_id: str, nodes: Mapping[int, FollowedNode]) -> None:
    """Find out which nodes `kill` ended before their supervisors could report an end.

    A supervisor that has just been started, or that was sent SIGKILL, reports none. A host is believed
    only about its own nodes.
    """
    silent = {
        node_rank: member.connection
        for node_rank, member in enumerate(handle.members)
        if nodes[node_rank].exited and not nodes[node_rank].end
    }
    reports, _ = reported_nodes([*silent.values()], run_id)
    cancelled = {
        (connection.host.account, status.node_rank)
        for connection, rows in reports.items()
        for status, _ in rows
        if status.state is ContainerState.CANCELLED and status.attempt == handle.number
    }
    for node_rank, connection in silent.items():
        nodes[node_rank].killed = (connection.host.account, node_rank) in cancelled


def explain(
    handle: AttemptHandle,
    folder: RunFolder,
    record: RunRecord,
    nodes: Mapping[int, FollowedNode],
    console: Console,
) -> None:
    """Record the first failure of an attempt that has ended, and keep the evidence of all failures.

    nodes: by node rank. The attempt's state must already be in the record.
    """
    attempt = record.attempt
    for node in nodes.values():
        node.unseen = str(node.contact.lost) if node.contact.lost else None
    evidence = Evidence(attempt.world_size, [*nodes.values()])
    if attempt.state is RunState.FAILED:
        ask_kernels(handle, record, nodes, console)
    if attempt.state is not RunState.SUCCEEDED:
        failure = first_failure(evidence)
        timed_out = failure is not None and failure.kind == "time-limit"
        if attempt.state is RunState.FAILED or timed_out:
            attempt.first_failure = failure

    def keep(failure: FirstFailure | None, known: Evidence, restart: int | None = None) -> None:
        try:
            if failure:
                path = folder.evidence_file(attempt.number, restart)
                write_atomically(path, failure_text(failure, known))
        except StateError as error:
            console.error(str(error))

    keep(attempt.first_failure, evidence)
    restarts = (restart for node in evidence.nodes for restart in node.of(RestartInPlace))
    for number in sorted({restart.number for restart in restarts})[-MOST_RESTARTS:]:
        before = before_restart(evidence, number)
        # the Monitor may have dropped a node's events from before it
        pairs = zip(before.nodes, evidence.nodes, strict=True)
        if all(was.events or not node.events for was, node in pairs):
            keep(first_failure(before), before, number)


def ask_kernels(
    handle: AttemptHandle,
    record: RunRecord,
    nodes: Mapping[int, FollowedNode],
    console: Console,
) -> None:
    """Add to the ended nodes' evidence what their hosts' kernels report about GPUs and memory."""
    began = parse_timestamp(record.by_hand.created) or time.time()
    members, seconds = handle.by_connection, time.time() - began

    def ask(connection: HostConnection) -> None:
        member = members[connection]
        node_rank = member.place.node_rank
        log = read_kernel_log(connection, seconds)
        listed = member.engine.nodes(record.run_id)
        gpus = next((each.gpus for each in listed if each.node_rank == node_rank and each.gpus), ())
        node = nodes[node_rank]
        node.gpus, node.xids = log.addresses(gpus), log.xids
        node.kernel, node.gpus_after = log.lines, log.loads

    ended = {node_rank for node_rank, node in nodes.items() if node.has_ended}
    with console.step("looking for GPU and memory errors"):
        try_each([each for each, member in members.items() if member.place.node_rank in ended], ask)


def report_end(run_id: str, attempt: AttemptRecord, console: Console) -> None:
    """Print how the attempt ended, and its first failure."""
    if attempt.state is RunState.UNKNOWN:
        where = "on hosts that have not confirmed its stop"
        then = "the next `ddpctl ps` or `launch` that reaches them will stop it"
        console.say(f"run {run_id} may still be alive {where}; {then}")
        return
    failure = attempt.first_failure
    if failure is None:
        console.say(f"run {run_id} {attempt.state.lower()}")
        return
    console.error(f"run {run_id} {attempt.state.lower()}: {failure.headline}")
    for line in failure.excerpt.splitlines():
        console.error(f"  | {line}")
    if failure.remedy:
        console.error(f"remedy: {failure.remedy}")


def report_next(record: RunRecord, console: Console) -> None:
    """Print how long the newest attempt ran, and which command the user may need next."""
    attempt, run_id = record.attempt, record.run_id
    began, ended = parse_timestamp(attempt.started), parse_timestamp(attempt.ended)
    if began is None or ended is None:
        return
    if attempt.state is RunState.SUCCEEDED:
        hint = f"`ddpctl fetch {run_id}` copies its checkpoints and outputs to this machine"
    else:
        hint = f"`ddpctl resume {run_id}` starts another attempt"
    which = f"attempt {attempt.number} " if attempt.number > 1 else ""
    console.say(f"{which}ran for {duration(round(ended - began))}; {hint}")
