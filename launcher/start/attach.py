"""Coming back to a run: print what it has logged so far, then follow it as `launch` does."""

from __future__ import annotations

import contextlib

from ..follow.session import EXIT, Session, report_end
from ..follow.show_logs import print_recorded
from ..follow.signals import Interrupts
from ..logs.query import Wanted
from ..logs.store import known_marks
from ..runs.attempt import running_attempt
from ..runs.record import FINAL, RunFolder
from ..runs.sync_logs import log_store, sync_logs
from ..runs.unseen import report_unseen
from ..terminal.console import Console
from .detach import start_recorder
from .event_hook import EventHook


def attach(folder: RunFolder, console: Console, on_event: str | None = None) -> int:
    """Follows the newest attempt to its end. A signal ends the following, never the run."""
    record = folder.load()
    with running_attempt(folder, record) as attempt:
        with log_store(folder, console) as store:
            report_unseen(sync_logs(attempt, store, console) if store else {}, console)
        known = known_marks(folder.logs)
        print_recorded(folder, Wanted(), known, console, fold=True)
        if record.state in FINAL:
            report_end(folder.run_id, record.attempt, console)
            return EXIT[record.state]
        hook = EventHook(folder, on_event, console)
        with Interrupts() as interrupts, contextlib.closing(hook):
            session = Session(
                attempt,
                folder,
                record,
                console,
                interrupts,
                start_recorder,
                hook,
                owned=False,
                known=known,
            )
            return session.follow()
