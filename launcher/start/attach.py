"""Return to a run: print its log so far, then follow it as `launch` does."""

import time

from ..errors import CommandFailed
from ..follow import detach
from ..follow.attempt_end import report_end, report_next
from ..follow.ctrl_c import Interrupts
from ..follow.hooks import EventHook
from ..follow.run_lines import RunLines
from ..follow.session import StartedRun, follow
from ..logs.query import LogFilter
from ..logs.store import known_marks
from ..look.logs import print_recorded, say_that_it_waits
from ..outcomes import Outcome, RunState
from ..runs import attempt_lock
from ..runs.newest_attempt import newest_attempt
from ..runs.record import RunRecord
from ..runs.run_folder import RunFolder
from ..runs.sync_logs import sync_logs
from ..terminal.console import Console
from ..terminal.host_errors import report_errors

POLL = 1.0  # seconds between checks of the record of a waiting run


def attach(folder: RunFolder, console: Console, on_event: str | None = None) -> Outcome:
    """Follow the run's newest attempt to its end, and return the outcome.

    Signals do not stop the run. If the run's recorder then restarts the run, also follow the next
    attempts.
    """
    log_filter = LogFilter()
    while True:
        outcome, record = follow_newest(folder, log_filter, console, on_event)
        if not outcome.state.is_final:
            return outcome
        newest = wait_for_restart(folder, record, console)
        number = newest.attempt.number
        if number > record.attempt.number and newest.attempt.by == "restart":
            log_filter = LogFilter(attempt=number)
            continue
        report_next(record, console)
        if number == record.attempt.number and newest.state.is_final:
            return Outcome(newest.state)  # `kill` may have ended the run before its restart
        return outcome


def follow_newest(
    folder: RunFolder,
    log_filter: LogFilter,
    console: Console,
    on_event: str | None,
    *,
    recorder: bool = False,
) -> tuple[Outcome, RunRecord]:
    """Print the selected lines of the log so far, then follow the newest attempt to its end.

    Return the outcome and the newest record. recorder: whether this process is the run's recorder.
    """
    is_own = recorder  # whether this process takes care of the newest attempt
    while True:
        record = folder.load()
        if record.state.is_starting and not is_own:
            record = wait_for_start(folder, console)
            if record.state.is_final and not record.attempt.started:
                report_end(folder.run_id, record.attempt, console)
                return Outcome(record.state), record
        with (
            newest_attempt(folder, console) as handle,
            Interrupts() as interrupts,
            EventHook(folder, on_event, console) as hook,
        ):
            known, record = record, folder.load()  # another machine may have started an attempt
            if record.state.is_starting and record.attempt.number > known.attempt.number:
                is_own = False
                continue  # the recorder is restarting the run
            report_errors(sync_logs(folder, handle, console, records=recorder), console)
            shown = known_marks(folder.logs)
            print_recorded(folder, log_filter, shown, RunLines(console))
            if not record.state.is_final:
                run = StartedRun(handle, folder, record, shown=shown, owned=False, records=recorder)
                return follow(run, hook, interrupts, console), record
        report_end(folder.run_id, record.attempt, console)
        return Outcome(record.state), record


def wait_for_restart(folder: RunFolder, ended: RunRecord, console: Console) -> RunRecord:
    """Wait until the run's recorder, if it may restart the run, has done so or has ended.

    Return the newest record.
    """
    announced = False
    with Interrupts():
        while True:
            may_restart = attempt_lock.is_taken_care_of(folder) and folder.goes_on(ended)
            newest = folder.load_if_readable(console) or ended
            if not may_restart or newest.attempt.number > ended.attempt.number:
                return newest
            if not announced:
                console.say("the run's recorder may restart the run; waiting for it")
            announced = True
            time.sleep(POLL)


def wait_for_start(folder: RunFolder, console: Console) -> RunRecord:
    """Wait until a run that is waiting in line or being started has started or ended. Return its record.

    If the process that was waiting in line for the run has died, starts a recorder that takes over. Raises
    CommandFailed if that recorder also ends too early.
    """
    recorder_started = announced = False
    while True:
        # check this before reading the record, because a process may change it and then end
        abandoned = not attempt_lock.is_taken_care_of(folder)
        record = folder.load()
        is_pending = record.state is RunState.PENDING and not abandoned
        if record.state is not RunState.WAITING and not is_pending:
            return record
        if not (is_pending or announced):
            say_that_it_waits(folder, console)
            announced = True
        if abandoned and recorder_started:
            log = folder.path / "recorder.log"
            what = f"{folder.run_id}: its recorder stopped before the run started (see {log})"
            raise CommandFailed(what, f"run `ddpctl attach {folder.run_id}` again")
        if abandoned:
            detach.ensure_recorder(folder, RunState.WAITING)
            recorder_started = True
        time.sleep(POLL)
