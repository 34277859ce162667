"""The recorder: a process on the launching machine that takes care of a detached run.

It waits in line for GPUs, keeps the logs, starts the restarts that job.max_restarts allows, and
runs --on-exit and --on-event. `launcher.follow.detach` starts it.
"""

import dataclasses
import os
import sys
from pathlib import Path

from ..errors import DdpctlError
from ..follow import hooks
from ..follow.detach import READY, recording
from ..plan.plan import LaunchOptions
from ..runs.record import RunFolder
from ..terminal.console import Console
from .attach import attach
from .attempt import NextAttempt
from .restart import restart_until_done
from .run_attempt import run_attempt


def main() -> int:
    folder = RunFolder(Path(sys.argv[1]))
    console = Console()
    console.stdout_closed = True  # it only records
    try:
        folder.load()
        with recording(folder):
            report_ready()
            return record(folder, console)
    except DdpctlError as error:
        console.error(str(error))
        return error.exit_code


def record(folder: RunFolder, console: Console) -> int:
    def run() -> int:
        record, on_event = folder.load(), hooks.kept_for_events(folder)
        options = LaunchOptions(**dataclasses.asdict(record.options), on_event=on_event)
        if record.state == "WAITING":
            earlier = dataclasses.replace(record, attempts=record.attempts[:-1])
            wanted = NextAttempt(
                folder.kept_cluster(),
                options,
                folder.run_id,
                earlier if earlier.attempts else None,
                since=record.attempt.waiting_since,  # it keeps its place in line
                until=record.attempt.waiting_until,
            )
            code = run_attempt(wanted, console)
        else:
            code = attach(folder, console, on_event)
        return restart_until_done(folder, options, code, console)

    return hooks.with_on_exit(folder, console, run, hooks.HANDED_OVER)


def report_ready() -> None:
    """Notify the command that started this process, and release stdout."""
    os.write(sys.stdout.fileno(), READY)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
