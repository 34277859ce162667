"""The recorder: a process on the launching machine that takes care of a detached run.

It waits in line for GPUs, records the logs, restarts the run as often as job.max_restarts allows,
and runs --on-exit and --on-event. `launcher.follow.detach` starts it. A signal ends it, never the
run (`launcher.follow.ctrl_c.end_recorder`).
"""

import contextlib
import dataclasses
import os
import sys
from pathlib import Path

from ..errors import DdpctlError
from ..follow import hooks
from ..follow.ctrl_c import Interrupts, signals_end_recorder
from ..follow.detach import READY
from ..logs.query import LogFilter
from ..outcomes import Outcome, RunState
from ..plan.launch_options import LaunchOptions
from ..runs.attempt_lock import locks_released_at_end
from ..runs.record import RunRecord
from ..runs.run_folder import RunFolder
from ..terminal.console import Console
from .attach import follow_newest
from .request import Request
from .restart import restart_until_done, turn_kept_for_restart
from .run_attempt import run_attempt


def main() -> int:
    folder = RunFolder(Path(sys.argv[1]))
    console = Console(results=False)
    try:
        folder.load()
        with signals_end_recorder():
            report_ready()
            return record_run(folder, console).exit
    except DdpctlError as error:
        console.error(str(error))
        return error.exit_code


def record_run(folder: RunFolder, console: Console) -> Outcome:
    """Take care of the run until it has ended for good. Return its outcome."""
    record, on_event = folder.load(), hooks.event_command(folder)
    options = LaunchOptions(**dataclasses.asdict(record.options), on_event=on_event)
    interrupts = Interrupts()  # gets no signals here, because `end_recorder` handles them
    with hooks.ExitHook(folder, console) as hook, locks_released_at_end(folder):
        if record.state is RunState.WAITING:
            request = still_waiting(folder, record, options)
            outcome = run_attempt(request, interrupts, console)
        else:
            with turn_kept_for_restart(folder, record, options, console):
                outcome, _ = follow_newest(folder, LogFilter(), console, on_event, recorder=True)
        hook.outcome = restart_until_done(folder, options, outcome, interrupts, console)
    return hook.outcome


def still_waiting(folder: RunFolder, record: RunRecord, options: LaunchOptions) -> Request:
    """Return the request for the newest attempt of a waiting run, which keeps its place in line."""
    attempt = record.attempt
    earlier = dataclasses.replace(record, attempts=record.attempts[:-1])
    return Request(
        folder.kept_cluster(),
        options,
        folder.run_id,
        earlier if earlier.attempts else None,
        attempt.number,
        attempt.by,
        since=attempt.waiting_since,
        until=attempt.waiting_until,
        token=attempt.token,
        handed_over=True,
    )


def report_ready() -> None:
    """Tell the command that started this process that the recorder is ready, and release stdout.

    That command may have died in the meantime.
    """
    with contextlib.suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), READY)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
