"""Wait in line for GPUs, with `launch --wait`. A run that waits has a ticket on each of its hosts."""

import dataclasses
import signal
import time
from collections.abc import Sequence

from ..errors import DdpctlError, PreflightError, Several, lines
from ..follow import detach
from ..follow.ctrl_c import LEAVING, Interrupts
from ..outcomes import Outcome, RunState
from ..ssh.background import in_background
from ..terminal.console import Console
from .planned_attempt import Refused
from .request import Request
from .settle_with_rivals import free_hosts
from .tickets import Tickets

POLL = 5.0  # seconds between checks of the hosts
TICK = 0.2  # seconds between checks for signals


def in_line(request: Request, refused: Refused) -> Request:
    """Return the request with its place in line, which counts from its first refusal.

    Raises Several without --wait.
    """
    limit = request.options.wait
    if limit is None:
        remedy = "launch with --wait to wait in line, or choose other GPUs"
        raise with_remedy(refused.reasons, remedy)
    until = request.until or (time.time() + limit if limit else None)
    return dataclasses.replace(request, since=refused.planned.plan.since, until=until)


def wait_for_turn(
    request: Request,
    refused: Refused,
    tickets: Tickets,
    interrupts: Interrupts,
    console: Console,
) -> Outcome | None:
    """Wait until the run may try again. Return None, or an Outcome if this command leaves it in line.

    Raises Several after --wait-limit, RunKilled if the run was killed, and KeyboardInterrupt after
    Ctrl-C or SIGTERM.
    """
    if refused.choose_again:
        raise_if_too_late(request, refused.reasons)
        time.sleep(POLL)
        return None
    save_waiting(request, refused, console)
    tickets.hold(refused.planned)
    # once a recorder has taken over the run, a signal must not record the run as cancelled
    with interrupts.held():
        if request.options.detach:
            outcome = detach.detach(request.folder, RunState.WAITING, console)
            outcome = dataclasses.replace(outcome, interrupted=bool(interrupts.take()))
        else:
            number = turn_or_signal(request, refused.reasons, tickets, interrupts, console)
            if number is None:
                return None
            if number not in LEAVING:
                raise KeyboardInterrupt
            detach.ensure_recorder(request.folder, RunState.WAITING)
            again = f"ddpctl attach {request.run_id}"
            console.say(f"the run stays in line; follow it with `{again}`")
            outcome = Outcome(RunState.WAITING, interrupted=number != signal.SIGQUIT)
        tickets.leave()
        interrupts.forget()
        return outcome


def save_waiting(request: Request, refused: Refused, console: Console) -> None:
    """Record the run as waiting, and print what it is waiting for.

    Raises StateError if the attempt cannot be locked.
    """
    request.take_care(to_wait=True)
    record = request.save_pending(refused.planned.plan)
    record.attempt.state = RunState.WAITING
    record.attempt.waiting_until = request.until
    request.folder.try_save(record, console)
    for line in lines(refused.reasons):
        console.say(f"run {request.run_id} is waiting: {line}")


def turn_or_signal(
    request: Request,
    printed: Sequence[DdpctlError],
    tickets: Tickets,
    interrupts: Interrupts,
    console: Console,
) -> int | None:
    """Wait until enough hosts are free or a signal arrives. Return the signal, or None.

    printed: the reasons that were already printed. Raises Several after --wait-limit.
    """
    needed = request.options.nodes or request.cluster.nnodes
    known = lines(printed)
    while True:
        # in the background, because a signal must not wait for a host that hangs
        renewing = in_background(tickets.renew)
        while not renewing.done():
            if (number := next_signal(interrupts)) is not None:
                return number
        free, reasons = free_hosts(tickets.planned, renewing.result())
        if len(free) >= needed:
            return None
        raise_if_too_late(request, reasons)
        for line in lines(reasons):
            if line not in known:
                console.say(f"run {request.run_id} is waiting: {line}")
        known = lines(reasons)
        for _ in range(round(POLL / TICK)):
            if (number := next_signal(interrupts)) is not None:
                return number


def next_signal(interrupts: Interrupts) -> int | None:
    """Return the oldest queued signal after TICK, or None."""
    time.sleep(TICK)
    return interrupts.take()


def raise_if_too_late(request: Request, reasons: Sequence[DdpctlError]) -> None:
    """If --wait-limit has passed, raise Several with the reasons."""
    if request.until is not None and time.time() >= request.until:
        raise with_remedy(reasons, "gave up waiting; raise --wait-limit or choose other GPUs")


def with_remedy(reasons: Sequence[DdpctlError], remedy: str) -> Several:
    return Several(PreflightError(each.what, remedy, host=each.host) for each in reasons)
