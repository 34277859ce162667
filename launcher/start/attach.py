"""Return to a run: print its log so far, then follow it like `launch`."""

import contextlib
import time

from ..follow.detach import start_recorder
from ..follow.hooks import EventHook
from ..follow.interrupts import Interrupts
from ..follow.session import EXIT, Session, report_end
from ..logs.query import Wanted
from ..look.logs import print_recorded
from ..runs.newest_attempt import log_store, newest_attempt, sync_logs
from ..runs.record import FINAL, RunFolder, RunRecord
from ..state import is_locked
from ..terminal.console import Console
from ..terminal.host_errors import report_unseen
from .run_attempt import WAITING

POLL = 1.0  # seconds between checks of the record of a waiting run


def attach(folder: RunFolder, console: Console, on_event: str | None = None) -> int:
    """Follow the newest attempt to its end; return its exit code. Signals do not stop the run."""
    record = folder.load()
    if record.state == "WAITING":
        record = wait_for_start(folder, record, console)
        if record.state in FINAL:
            report_end(folder.run_id, record.attempt, console)
            return EXIT[record.state]
    with (
        newest_attempt(folder, console, record) as attempt,
        Interrupts() as interrupts,
        contextlib.closing(EventHook(folder, on_event, console)) as hook,
    ):
        with log_store(folder, console) as store:
            report_unseen(sync_logs(attempt, store, console), console)
        known = print_recorded(folder, Wanted(), console, fold=True)
        if record.state not in FINAL:
            run = (attempt, folder, record, console, interrupts, start_recorder, hook)
            return Session(*run, owned=False, known=known).follow()
    report_end(folder.run_id, record.attempt, console)
    return EXIT[record.state]


def wait_for_start(folder: RunFolder, record: RunRecord, console: Console) -> RunRecord:
    """Wait until a run in line has started or ended; return its record."""
    console.say(f"run {folder.run_id} is waiting in line for GPUs; `ddpctl ps` shows for which")
    if not is_locked(folder.path / WAITING):
        start_recorder(folder)
    while record.state in ("WAITING", "PENDING"):
        time.sleep(POLL)
        record = folder.load()
    return record
