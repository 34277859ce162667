"""Run one attempt: check, push, plan, claim GPUs, start and follow."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

from ..errors import RunKilled
from ..follow import detach
from ..follow.hooks import EventHook
from ..follow.interrupts import Interrupts
from ..follow.session import StartedRun, follow
from ..hosts import user_env
from ..outcomes import NodeState, Outcome, RunState
from ..own_folders import require_writable
from ..plan.plan import Plan
from ..runs.record import RunRecord, for_hosts, timestamp
from ..ssh.host_connection import HostConnection, connected
from ..stop.pending import finish_pending
from ..terminal.console import QUIET_BEFORE, Console
from ..text import counted
from .check_push_plan import HostSurvey, check, make_plan, push
from .checkpoints import distribute_checkpoint
from .choose_hosts import choose_hosts
from .claim_gpus import Refused, create_unless_taken
from .request import Request
from .reservation import Reservation
from .start_nodes import PlannedAttempt, remove_nodes, start_nodes
from .waiting_line import PlaceInLine, Tickets, tickets_kept_for_restart

SHORTEST = 0.1  # seconds; the summary of a start omits steps that took less


def run_attempt(
    request: Request, console: Console, restart_tickets: Tickets | None = None
) -> Outcome:
    """Start the attempt on all nodes, after waiting in line if asked to, and follow it to its end.

    restart_tickets: the tickets that a restarting run holds.
    """
    # prepare spares too, so that a later restart can use them at once
    spares_to_prepare = () if request.options.by == "restart" else request.cluster.spares
    reservation = Reservation(request.run_id, request.attempt, request.handed_over)
    with (
        connected(request.cluster.hosts) as connections,
        connected(request.former) as former,
        connected(spares_to_prepare) as spares,
        Interrupts() as interrupts,
        EventHook(request.folder, request.options.on_event, console) as hook,
        failed_start_recorded(request, hook, console),
        PlaceInLine(request, reservation, former, interrupts, console, restart_tickets) as line,
    ):
        require_writable(request.folder.path.parent)
        finish_pending(connections, request.cluster, console)
        while True:
            result = try_to_run(request, connections, spares, line, hook)
            if isinstance(result, Outcome):
                return result
            # keep the time of the first request, and so the run's turn
            request = dataclasses.replace(request, since=result.planned.plan.since)
            if outcome := line.wait(result):
                return outcome


def try_to_run(
    request: Request,
    connections: Sequence[HostConnection],
    spares: Sequence[HostConnection],
    line: PlaceInLine,
    hook: EventHook,
) -> Outcome | Refused:
    """Check and prepare the hosts, claim the GPUs, start all nodes or none, and follow the run.

    Return Refused if other runs come first.
    """
    console, reservation = line.console, line.reservation
    folder, job = request.folder, request.cluster.job
    chosen = choose_hosts(request, connections, console)
    if isinstance(chosen, Refused):
        reservation.take(connections, console)
        return chosen
    narrowed = request.on(chosen)  # with --nodes N
    survey = check(narrowed, chosen, spares, console)
    pushed = push(survey, spares, console)
    plan = make_plan(survey, pushed, console)
    reservation.take(connections, console)
    record = narrowed.remember(plan)
    if request.earlier:
        compare(request.earlier, plan, console)
        distribute_checkpoint(chosen, line.former, request.earlier, plan, console)
    planned = PlannedAttempt(plan, chosen)
    line.raise_if_killed()
    # hold signals until `follow` handles them, so that nothing is left half done
    with line.interrupts.held():
        if refused := create_unless_taken(planned, user_env(job), for_hosts(record), console):
            return dataclasses.replace(refused, choose_again=len(chosen) < len(connections))
        start(planned, reservation, console)
        started = record_start(planned, survey, record, hook, console)
        line.leave(planned)  # if the run may restart, it takes new tickets below
        if request.options.detach:
            hook.close()
            return detach.detach(folder, RunState.RUNNING, console)
        with tickets_kept_for_restart(Tickets(planned, reservation), folder, console):
            return follow(started, hook, line.interrupts, console)


@contextlib.contextmanager
def failed_start_recorded(request: Request, hook: EventHook, console: Console) -> Iterator[None]:
    """Context manager: if the block fails before the attempt has started, record the failure."""
    try:
        yield
    except BaseException as error:
        record = request.folder.load_if_readable(console)
        current = record and record.attempt.number == request.attempt
        if record and current and not record.attempt.started:
            cancelled = isinstance(error, KeyboardInterrupt | RunKilled)
            record.attempt.state = RunState.CANCELLED if cancelled else RunState.FAILED
            record.attempt.ended = timestamp()
            request.folder.try_save(record, console)
            hook("attempt-ended", record, message=record.attempt.state)
        raise


def start(planned: PlannedAttempt, reservation: Reservation, console: Console) -> None:
    """Start all nodes or none. Raises RunKilled if `kill` has cancelled the attempt."""
    try:
        with console.step("asking whether the run was killed"):
            reservation.raise_if_killed(planned.connections)
        start_nodes(planned, console)
    except RunKilled:
        remove_nodes(planned, console, folders=True)
        raise
    except BaseException:
        remove_nodes(planned, console)
        # the cause may be that `kill` removed a node just before its start
        reservation.raise_if_killed(planned.connections)
        raise


def record_start(
    planned: PlannedAttempt,
    survey: HostSurvey,
    record: RunRecord,
    hook: EventHook,
    console: Console,
) -> StartedRun:
    """Record and print that the attempt has started, call the hook, and return the started run."""
    plan, entry, folder = planned.plan, record.attempt, survey.request.folder
    entry.state, entry.started = RunState.RUNNING, timestamp()
    for node in entry.nodes:
        node.state = NodeState.RUNNING
    folder.try_save(record, console)
    number = f", attempt {plan.attempt}," if plan.attempt > 1 else ""
    size = f"{counted(plan.nnodes, 'node')}, {counted(entry.world_size, 'rank')}"
    master = f"{plan.master_addr}:{plan.master_port}"
    console.say(f"run {plan.run_id}{number} started: {size}, master {master}")
    if times := where_time_went(console.steps):
        console.say(times)
    console.steps.clear()
    hook("attempt-started", record, message=entry.by)
    skews = [facts.clock_skew for facts in survey.facts]
    return StartedRun(planned.running, folder, record, skews)


def compare(earlier: RunRecord, plan: Plan, console: Console) -> None:
    """Print a line for each digest that differs from that of the previous attempt."""
    packages = "image" if plan.engine.in_container else "set of packages"
    for what, before, now in (
        (packages, earlier.image_digest, plan.image_digest),
        ("dataset", earlier.dataset_digest, plan.dataset_digest),
        ("code in workdir", earlier.workdir_digest, plan.workdir_digest),
    ):
        if before != now:
            last = earlier.attempt.number
            console.say(f"attempt {plan.attempt}: the {what} differs from that of attempt {last}")


def where_time_went(steps: Sequence[tuple[str, float]]) -> str:
    """Return a summary of the steps, given as (name, seconds); "" for a quick start."""
    total = sum(seconds for _, seconds in steps)
    if total < QUIET_BEFORE:
        return ""
    shown = [f"{what} {seconds:.1f} s" for what, seconds in steps if seconds >= SHORTEST]
    return f"took {total:.1f} s: {', '.join(shown)}"
