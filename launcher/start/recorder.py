"""The recorder: a process on the launching machine that takes care of a detached run.

It waits in line for GPUs, records the logs, restarts the run as often as job.max_restarts allows,
and runs --on-exit and --on-event. `launcher.follow.detach` starts it.
"""

import dataclasses
import os
import sys
from pathlib import Path

from ..errors import DdpctlError
from ..follow import hooks
from ..follow.detach import READY, recording
from ..outcomes import Outcome, RunState
from ..plan.plan import LaunchOptions
from ..runs.record import RunFolder, RunRecord
from ..terminal.console import Console
from .attach import attach
from .launch import run_with_restarts
from .request import Request
from .restart import restart_until_done, turn_kept_for_restart


def main() -> int:
    folder = RunFolder(Path(sys.argv[1]))
    console = Console(results=False)
    try:
        folder.load()
        with recording(folder):
            report_ready()
            return record_run(folder, console).exit
    except DdpctlError as error:
        console.error(str(error))
        return error.exit_code


def record_run(folder: RunFolder, console: Console) -> Outcome:
    """Take care of the run until it has ended and will not be restarted. Return its outcome."""
    record, on_event = folder.load(), hooks.event_command(folder)
    options = LaunchOptions(**dataclasses.asdict(record.options), on_event=on_event)
    if record.state is RunState.WAITING:
        return run_with_restarts(still_waiting(folder, record, options), console)
    with hooks.ExitHook(folder, console) as hook:
        with turn_kept_for_restart(folder, record, options, console):
            outcome = attach(folder, console, on_event)
        hook.outcome = restart_until_done(folder, options, outcome, console)
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
        handed_over=True,
    )


def report_ready() -> None:
    """Notify the command that started this process, and release stdout."""
    os.write(sys.stdout.fileno(), READY)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
