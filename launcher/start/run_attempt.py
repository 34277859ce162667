"""Run one attempt: check, push, plan, claim GPUs, start and follow.

launcher/start/__init__.py explains what keeps other commands away from it meanwhile.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..errors import DdpctlError, RunKilled
from ..follow import detach
from ..follow.ctrl_c import Interrupts
from ..follow.hooks import EventHook
from ..follow.session import StartedRun, follow
from ..hosts import user_env
from ..outcomes import NodeState, Outcome, RunState
from ..own_folders import require_writable
from ..plan.plan import Plan
from ..runs.record import RunRecord, for_hosts, timestamp
from ..ssh.host_connection import HostConnection, connected
from ..ssh.many import each_node
from ..stop.pending_stops import finish_pending_stops
from ..terminal.console import QUIET_BEFORE, Console
from ..text import counted
from .check_push_plan import check, make_plan, push
from .checkpoints import distribute_checkpoint
from .choose_hosts import choose_hosts
from .planned_attempt import PlannedAttempt, Refused
from .request import Request
from .reservation import Reservation
from .settle_with_rivals import settle_with_rivals
from .start_nodes import create_nodes, remove_nodes, require_ended, start_nodes
from .tickets import Tickets
from .waiting_line import in_line, wait_for_turn

SHORTEST = 0.1  # seconds; the summary of a start omits steps that took less


def run_attempt(
    request: Request, interrupts: Interrupts, console: Console, inherited: Tickets | None = None
) -> Outcome:
    """Start the attempt on all nodes, and follow it until it ends or this command leaves it.

    Return the outcome. With --wait, first waits in line while other runs use the GPUs. inherited: the
    tickets of the attempt that this one restarts.
    """
    previous = inherited.planned if inherited else None
    with (
        connected(request.cluster.hosts) as connections,
        connected(request.former) as former,
        EventHook(request.folder, request.options.on_event, console) as hook,
        Tickets(request, [*connections, *former], inherited) as tickets,
    ):
        reservation = Reservation(request, connections, previous, is_own=request.handed_over)
        starter = Starter(connections, former, reservation, tickets, interrupts, hook, console)
        with failed_start_recorded(request, reservation, hook, console):
            require_writable(request.folder.path.parent)
            finish_pending_stops(connections, console)
            while isinstance(result := starter.try_to_run(request), Refused):
                request = in_line(request, result)
                interrupts.can_leave = True
                # `kill` cancels the reservation of a waiting run; with --nodes, `try_to_run` may have
                # been refused before it reserved the attempt
                reservation.take(console)
                if outcome := wait_for_turn(request, result, tickets, interrupts, console):
                    return outcome
                console.take_steps()  # the summary of the start omits the refused try
            return result


@dataclass(frozen=True)
class Starter:
    """Tries to start one attempt, with connections that stay open from one try to the next."""

    connections: Sequence[HostConnection]
    former: Sequence[HostConnection]  # the run's earlier hosts, which may have its checkpoints
    reservation: Reservation
    tickets: Tickets
    interrupts: Interrupts
    hook: EventHook
    console: Console

    def try_to_run(self, request: Request) -> Outcome | Refused:
        """Start the attempt on all nodes or on none, and follow it. With --nodes N, choose N free hosts.

        Return how the run ended or how this command left it, or Refused if other runs come first.
        """
        console = self.console
        chosen = choose_hosts(request, self.connections, console)
        if isinstance(chosen, Refused):
            return chosen
        # prepare spares too, so that a later restart can use them at once
        to_prepare = () if request.by == "restart" else request.cluster.spares
        narrowed = request.on(chosen)
        with connected(to_prepare) as spares:
            checked = check(narrowed, chosen, spares, console)
            pushed = push(narrowed, checked, spares, console)
        planned = make_plan(narrowed, checked, pushed)
        record = self.reserve(narrowed, planned)
        if request.earlier:
            report_changes(request.earlier, planned.plan, console)
            distribute_checkpoint(chosen, self.former, request.earlier, planned.plan, console)
        # until `follow` handles signals, so that nothing is left half done
        with self.interrupts.held():
            if reasons := self.start(narrowed, planned, record):
                return Refused(planned, reasons, choose_again=len(chosen) < len(self.connections))
            self.record_start(narrowed, planned, record)
            self.interrupts.can_leave = True
            self.tickets.remove_all()  # the nodes themselves are the claims now
            if request.options.detach:
                self.hook.close()  # wait for its events; the recorder handles later ones
                return detach.detach(request.folder, RunState.RUNNING, console)
            skews = [facts.clock_skew for facts in checked.facts]
            started = StartedRun(planned.handle, request.folder, record, skews)
            with self.tickets.held_for_restart(planned, console):
                return follow(started, self.hook, self.interrupts, console)

    def reserve(self, request: Request, planned: PlannedAttempt) -> RunRecord:
        """Reserve the attempt, so that no other command starts it. Return its PENDING record.

        Call this after the checks: they may fail, and a reserved attempt's number is used up.
        """
        if request.by == "resume":  # a refusal must not be recorded as the run's newest attempt
            with self.console.step("asking whether the run is alive"):
                each_node(planned.connections, lambda each: require_ended(planned.own_nodes(each)))
        # before the reservation, so that a restart leaves the attempt to a resume that prepares it here
        request.take_care()
        self.reservation.take(self.console)
        return request.save_pending(planned.plan)

    def start(
        self, request: Request, planned: PlannedAttempt, record: RunRecord
    ) -> list[DdpctlError]:
        """Start the attempt's nodes. If rivals come first, start none and return an error for each.

        After any failure, remove the nodes on all hosts. Raises RunKilled if `kill` has cancelled the
        attempt.
        """
        console, env = self.console, user_env(request.cluster.job)
        stop_earlier = request.by == "restart"
        try:
            create_nodes(planned, env, for_hosts(record), console, stop_earlier=stop_earlier)
            reasons = settle_with_rivals(planned, console, self.interrupts.sleep)
            self.reservation.raise_if_killed(console)
            if not reasons:
                start_nodes(planned, env, console)
                return []
        except RunKilled:
            remove_nodes(planned, console, folders=True)
            raise
        except BaseException:
            remove_nodes(planned, console)
            # the cause may be that `kill` removed a node just before its start
            self.reservation.raise_if_killed(console)
            raise
        remove_nodes(planned, console, folders=True)
        return reasons

    def record_start(self, request: Request, planned: PlannedAttempt, record: RunRecord) -> None:
        """Record and print that the attempt has started, and call the hook."""
        plan, entry = planned.plan, record.attempt
        entry.state, entry.started = RunState.RUNNING, timestamp()
        for node in entry.nodes:
            node.state = NodeState.RUNNING
        request.folder.try_save(record, self.console)
        number = f", attempt {plan.attempt}," if plan.attempt > 1 else ""
        size = f"{counted(plan.nnodes, 'node')}, {counted(entry.world_size, 'rank')}"
        master = f"{plan.master_addr}:{plan.master_port}"
        self.console.say(f"run {plan.run_id}{number} started: {size}, master {master}")
        if times := where_time_went(self.console.take_steps()):
            self.console.say(times)
        self.hook("attempt-started", record, message=entry.by)


@contextlib.contextmanager
def failed_start_recorded(
    request: Request, reservation: Reservation, hook: EventHook, console: Console
) -> Iterator[None]:
    """Context manager: if the block fails before the attempt has started, record the failure.

    The hosts record it too, as a cancelled reservation, because other machines may resume the run.

    Leaves the reservation alone if another command has the attempt. Then records the failure only if
    this command has recorded the attempt, and lost it while it waited in line.
    """
    try:
        yield
    except BaseException as error:
        if record := request.folder.load_if_readable(console):
            newest = record.attempt
            if newest.number < request.attempt:  # the attempt could not be recorded
                reservation.cancel()
            elif newest.token == request.token and not newest.started:
                cancelled = isinstance(error, KeyboardInterrupt | RunKilled)
                newest.state = RunState.CANCELLED if cancelled else RunState.FAILED
                newest.ended = timestamp()
                request.folder.try_save(record, console)
                reservation.cancel()
                hook("attempt-ended", record, message=newest.state)
        raise


def report_changes(earlier: RunRecord, plan: Plan, console: Console) -> None:
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
