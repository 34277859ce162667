"""Restarts by the launcher: whether, when and on which hosts to start an attempt after a failure.

The supervisors restart a run in place as long as its hosts are alive (launcher/supervisor). The
launcher handles the other failures, such as a lost host or container.
"""

import contextlib
import dataclasses
import time
from collections.abc import Iterator

from ..errors import DdpctlError, HostsFileError, NodesFailed, RunKilled, UsageError, lines
from ..facts.gather import gather_one
from ..follow.ctrl_c import Interrupts
from ..outcomes import Outcome, RunState
from ..plan.build import PlanInputs
from ..plan.launch_options import LaunchOptions
from ..preflight.blamed import remember_blame
from ..runs.newest_attempt import newest_attempt
from ..runs.record import BY_LAUNCHER, RestartRecord, RunRecord, timestamp
from ..runs.run_folder import RunFolder
from ..ssh.host_connection import HostConnection, connected
from ..ssh.many import try_each
from ..ssh.script_files import load_script
from ..supervisor.restart_rule import PAUSES_BY_LAUNCHER, without_progress
from ..terminal.console import Console
from ..text import duration
from .replace_hosts import (
    NextHosts,
    Problems,
    hosts_to_avoid,
    rejected_hosts,
    replace_hosts,
    unusable_hosts,
)
from .request import Request
from .reservation import raise_if_cancelled_here, raise_if_ended
from .run_attempt import run_attempt
from .tickets import Tickets

PATIENCE = (10.0, 30.0, 60.0)  # seconds to wait before each new look at missing hosts
NEW_CHECKPOINT = load_script(__file__, "new_checkpoint.sh")


def restart_until_done(
    folder: RunFolder,
    options: LaunchOptions,
    outcome: Outcome,
    interrupts: Interrupts,
    console: Console,
) -> Outcome:
    """If the run failed, restart it as often as the job allows. Return the last outcome."""
    while outcome.state is RunState.FAILED:
        try:
            record = folder.load()
            base = request_to_restart(folder, record, options)
            if base.cluster.job.max_restarts == 0:
                break
            again = restart(base, record, interrupts, console)
        except UsageError as error:  # for example, another command is starting the attempt
            console.error(f"not restarting: {error}")
            break
        except RunKilled:
            newest = folder.load()
            if newest.attempt.number == record.attempt.number:  # a resume's attempt was not killed
                newest.attempt.state = RunState.CANCELLED
                folder.try_save(newest, console)
            console.say(f"run {folder.run_id} was killed while it was restarting")
            again = Outcome(RunState.CANCELLED)
        if again is None:
            break
        outcome = again
    return outcome


def restart(
    base: Request, record: RunRecord, interrupts: Interrupts, console: Console
) -> Outcome | None:
    """Start the next attempt after a pause, and follow it. Return None if the run is not restarted.

    Raises RunKilled if `kill` stops the run before it has restarted.
    """
    folder, most, failure = base.folder, base.cluster.job.max_restarts, record.attempt.first_failure
    why = record.why_not_restarted(most, saved=True)
    if why or failure is None:
        console.say(f"not restarting: {why}")
        return None
    with tickets_until_restart(base) as tickets:
        saved = has_saved(folder, record, console)
        if why := record.why_not_restarted(most, saved=saved):
            console.say(f"not restarting: {why}")
            return None
        wait = PAUSES_BY_LAUNCHER[without_progress(saved, record.past_restarts)]
        console.say(f"restart {len(record.restarts) + 1} of {most} in {duration(wait)}")
        time.sleep(wait)
        newest = folder.load_if_readable(console) or record
        if newest.attempt.number != record.attempt.number:
            console.say("not restarting: another command has resumed the run")
            return None
        record = newest  # `kill` may have changed it
        entry = RestartRecord.after(failure, kind=BY_LAUNCHER, time=timestamp(), saved=saved)
        record.attempt.restarts.append(entry)  # counts below; `request_for` saves it
        avoided = hosts_to_avoid(record, base.cluster)
        remember_blame(folder.run_id, {host.name: each.what for host, each in avoided.items()})
        return start_somewhere(base, entry, avoided, tickets, interrupts, console)


def start_somewhere(
    base: Request,
    entry: RestartRecord,
    avoided: Problems,
    tickets: Tickets | None,
    interrupts: Interrupts,
    console: Console,
) -> Outcome | None:
    """Start and follow the next attempt on usable hosts. Return None if there are too few hosts.

    A host that fails the checks, or whose GPUs another run has taken, is replaced like a lost host.
    entry: the record of this restart. avoided: the hosts to use only if there are no others.
    """
    assert base.earlier is not None
    nnodes, folder = len(base.earlier.by_hand.nodes), base.folder
    rejected: Problems = {}
    patience = iter(PATIENCE)
    sleep = tickets.sleep if tickets else time.sleep  # with tickets, `kill` ends the wait
    while True:
        with console.step("asking which hosts can be used"):
            unusable = {**rejected, **unusable_hosts(base.cluster, base.run_id)}
        raise_if_cancelled_here(folder.run_id, folder.load().attempt.number)
        if tickets:  # before the push, which would send again what `clean` has removed
            raise_if_ended(tickets.planned)
        choice = replace_hosts(base.cluster, nnodes, unusable, avoided)
        if choice.missing and (wait := next(patience, None)) is not None:
            for line in lines(choice.missing):
                console.say(f"{line}; looking again in {duration(wait)}")
            sleep(wait)
            rejected = {}
            continue
        if choice.missing:
            choice = replace_hosts(base.cluster, nnodes, unusable, avoided, fewer=True)
        if choice.missing:
            missing = "; ".join(lines(choice.missing))
            console.say(f"not restarting: no spare is left, and {missing}")
            return None
        for note in choice.notes:
            console.say(note)
        request = request_for(choice, base, entry, unusable)
        try:
            return run_attempt(request, interrupts, console, tickets)
        except (UsageError, RunKilled):
            raise
        except DdpctlError as error:
            newest = folder.load().attempt
            problems = rejected_hosts(error, request.cluster.hosts)
            if not problems or (newest.number == request.attempt and newest.started):
                raise
            rejected = {**rejected, **problems}


def request_for(
    choice: NextHosts, base: Request, entry: RestartRecord, unusable: Problems
) -> Request:
    """Return the request for an attempt on the chosen hosts. `entry` is recorded with that attempt."""
    hosts, record = choice.cluster.hosts, base.folder.load()
    if entry not in record.restarts:  # no try on other hosts has recorded it
        record.attempt.restarts.append(entry)
    options = base.options
    if choice.cluster.spares:  # using another host is better than waiting in line
        options = dataclasses.replace(options, wait=None)
    return dataclasses.replace(
        base,
        cluster=choice.cluster,
        options=options,
        earlier=record,
        attempt=record.attempt.number + 1,
        # hosts that are no longer used, but are reachable and may have checkpoints
        former=tuple(h for h in base.cluster.hosts if h not in hosts and h not in unusable),
        notes=choice.notes,
    )


def request_to_restart(folder: RunFolder, record: RunRecord, options: LaunchOptions) -> Request:
    """Return a request that repeats the newest attempt and may use all hosts of the run.

    Raises UsageError if this machine's record of the hosts or of job.env cannot be read, or if another
    machine started that attempt, because only that machine knows its command.
    """
    if record.attempt.is_reported:
        what = f"attempt {record.attempt.number} was started on another machine"
        remedy = f"run `ddpctl resume {folder.run_id}` to start another attempt from here"
        raise UsageError(f"{folder.run_id}: {what}", remedy)
    options = dataclasses.replace(options, detach=False, nodes=None)
    number, since = record.attempt.number, record.attempt.waiting_since
    cluster = folder.kept_cluster()
    return Request(cluster, options, folder.run_id, record, number, "restart", since=since)


@contextlib.contextmanager
def turn_kept_for_restart(
    folder: RunFolder, record: RunRecord, options: LaunchOptions, console: Console
) -> Iterator[None]:
    """Context manager: hold tickets for a restart of a run that another process started."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(UsageError, RunKilled):  # these rule out a restart
            base = request_to_restart(folder, record, options)
            may_restart = base.cluster.job.max_restarts and not record.state.is_final
            if may_restart and (tickets := stack.enter_context(tickets_until_restart(base))):
                stack.enter_context(tickets.held_for_restart(tickets.planned, console))
        yield


@contextlib.contextmanager
def tickets_until_restart(base: Request) -> Iterator[Tickets | None]:
    """Context manager: hold tickets on the hosts of the newest attempt, and remove them at the end.

    Yields the tickets, or None if no host answers. Raises RunKilled if the run was killed.
    """
    pending = base.earlier.pending_stop if base.earlier else []
    with connected([h for h in base.cluster.hosts if h.name not in pending]) as connections:
        facts, _ = try_each(connections, gather_one)
        with Tickets(base, [*facts]) as tickets:
            planned = None
            with contextlib.suppress(NodesFailed, HostsFileError):
                if facts:  # a plan only for the tickets' labels; no node comes of it
                    planned = base.planned([*facts], PlanInputs(tuple(facts.values())))
                    tickets.hold(planned)
            yield tickets if planned else None


def has_saved(folder: RunFolder, record: RunRecord, console: Console) -> bool:
    """Return whether any host that answers has a checkpoint saved since the last start."""
    step = console.step("looking for new checkpoints")
    with newest_attempt(folder, console, record) as running, step:

        def look(connection: HostConnection) -> bool:
            place = running.by_connection[connection].place
            return bool(connection.script(NEW_CHECKPOINT, place.run_dir, place.control_dir).stdout)

        pending = [
            connection
            for connection in running.connections
            if connection.name in record.pending_stop
        ]
        others = [connection for connection in running.connections if connection not in pending]
        # those with a pending stop last, because a lost host costs a connection timeout
        return any(any(try_each(group, look)[0].values()) for group in (others, pending))
