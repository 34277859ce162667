"""Reserve an attempt on its hosts, so that only one command starts it and `kill` can cancel it."""

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import NodesFailed, RunKilled, UsageError
from ..runs.attempt_lock import is_cancelled
from ..runs.run_folder import run_folder
from ..ssh.background import in_background
from ..ssh.host_connection import HostConnection
from ..ssh.many import ask_each, try_each
from ..ssh.script_files import load_script
from ..terminal.console import Console
from .planned_attempt import PlannedAttempt
from .request import Request

RESERVE = load_script(__file__, "reserve_attempt.sh")
CANCEL = load_script(__file__, "cancel_reservation.sh")
CANCELLED = load_script(__file__, "reservation_cancelled.sh")
LIST_CANCELLED = load_script(__file__, "cancelled_reservations.sh")
REFUSED = 17  # exit code of RESERVE if another command was first, and of CANCELLED after a kill
NO_FOLDER = 18  # exit code of CANCELLED if the run has no folder on the host
CANCEL_TIMEOUT = 0.5  # seconds; after Ctrl-C, all must be done within one second
NUMBER = re.compile(rb"^[1-9]\d{0,3}$", re.MULTILINE)


@dataclass
class Reservation:
    """The reservation of an attempt that a command is about to start. It is never removed."""

    request: Request
    connections: Sequence[HostConnection]  # to all hosts on which the attempt may start
    previous: PlannedAttempt | None = None  # the attempt that this one restarts
    is_own: bool = False  # whether no other command starts the attempt

    def take(self, console: Console) -> None:
        """Reserve the attempt. Call this again after a wait, for hosts that were down before.

        The first host in the hosts' order that answers decides, because all commands for a run ask
        its hosts in the same order.
        Raises UsageError if another command was first, NodesFailed if no host answers, and RunKilled
        if `kill` has cancelled the previous attempt or, on this machine, this one. A later `kill`
        cancels this reservation.
        """
        self._raise_if_killed_earlier()  # if it was killed, the next resume gets its number
        run_id, attempt, token = self.request.run_id, self.request.attempt, self.request.token
        with console.step("reserving the attempt"):
            answers, failures = ask_each(
                self.connections, lambda each: each.script(RESERVE, run_id, str(attempt), token)
            )
        if not answers:
            raise NodesFailed(failures)
        name, done = next(iter(answers.items()))
        self.is_own = done.code != REFUSED
        if not self.is_own:
            raise UsageError(
                f"attempt {attempt} was already started by another command or machine",
                f"run `ddpctl ps HOSTS` to see it; if it is not listed, run `ddpctl kill {run_id}`",
                host=name,
            )
        what = f"could not create ~/.ddpctl/runs/{run_id}"
        remedy = "check the free space (`df -h`) and the permissions of ~/.ddpctl on that host"
        done.expect(what, remedy, name)
        self._raise_if_killed_earlier()

    def cancel(self) -> None:
        """Mark the attempt as one that did not start, so that a resume on any machine skips it.

        Does nothing if another command may start the attempt, because a mark on any host ends that.
        Gives up after a moment. Without the marks, only the record on this machine shows it.
        """
        if not self.is_own:
            return
        request = self.request

        def mark(connection: HostConnection) -> None:
            connection.script(CANCEL, request.run_id, str(request.attempt), request.token)

        with contextlib.suppress(TimeoutError):
            in_background(try_each, self.connections, mark).result(CANCEL_TIMEOUT)

    def raise_if_killed(self, console: Console) -> None:
        """Raise RunKilled if `kill` has cancelled this attempt or the previous one."""
        with console.step("asking whether the run was killed"):
            # on all hosts, because `kill` may have reached only one that the run chose and lost
            raise_if_cancelled(self.request.run_id, self.request.attempt, self.connections)
            self._raise_if_killed_earlier()

    def _raise_if_killed_earlier(self) -> None:
        """Raise RunKilled if `kill` has cancelled this attempt here, or the previous one.

        Neither leaves a mark on this reservation.
        """
        run_id, attempt = self.request.run_id, self.request.attempt
        raise_if_cancelled_here(run_id, attempt)
        if self.request.by == "restart":
            raise_if_cancelled_here(run_id, attempt - 1)
        if self.previous:  # `kill` may have reached only its hosts
            raise_if_ended(self.previous)


def newest_cancelled(connections: Sequence[HostConnection], run_id: str, limit: int) -> int:
    """Return the newest attempt, up to `limit`, whose reservation is cancelled; 0 if there is none.

    This is the only trace on a host of an attempt that ended before it had folders there.
    """
    answers, _ = try_each(connections, lambda each: each.script(LIST_CANCELLED, run_id).stdout)
    numbers = [int(text) for listed in answers.values() for text in NUMBER.findall(listed)]
    return max((number for number in numbers if number <= limit), default=0)


def raise_if_cancelled_here(run_id: str, attempt: int) -> None:
    """Raise RunKilled if `kill` on this machine has cancelled the attempt, even if it reached no host."""
    if is_cancelled(run_folder(run_id), attempt):
        raise killed_before_start(run_id)


def raise_if_ended(previous: PlannedAttempt) -> None:
    """Raise RunKilled if `kill` or `clean` has ended the run on the hosts of an attempt that has failed."""
    plan = previous.plan
    raise_if_cancelled(plan.run_id, plan.attempt, previous.connections, has_run=True)


def raise_if_cancelled(
    run_id: str, attempt: int, connections: Sequence[HostConnection], *, has_run: bool = False
) -> None:
    """Raise RunKilled if `kill` has cancelled the attempt on one of the hosts.

    has_run: the attempt has run on all these hosts. If the run's folder is gone from all that answer,
    `clean` has ended the run. One of them may have lost its disk instead.

    Call this after the run's nodes or tickets are created, and before relying on them. `kill` marks
    the reservation first and then looks for nodes and tickets. So either `kill` sees them, or this
    call sees the mark.
    """
    answers, _ = try_each(
        connections, lambda each: each.script(CANCELLED, run_id, str(attempt)).code
    )
    codes = {*answers.values()}
    if REFUSED in codes or (has_run and codes == {NO_FOLDER}):
        raise killed_before_start(run_id)


def killed_before_start(run_id: str) -> RunKilled:
    return RunKilled(f"run {run_id} was killed before it started")
