"""Shows a run's logs: first what the hosts have beyond this machine's copy, then live if asked."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.engines.attempt import RunningAttempt
from launcher.follow.monitor import Lines, Monitor
from launcher.follow.signals import Interrupts
from launcher.logs.query import Wanted, merged
from launcher.logs.store import LogStore, Mark, known_marks
from launcher.runs.attempt import running_attempt
from launcher.runs.record import RunFolder
from launcher.runs.sync_logs import sync_logs
from launcher.runs.unseen import report_unseen
from launcher.terminal.console import Console


def show_logs(folder: RunFolder, wanted: Wanted, console: Console, *, follow: bool) -> int:
    """Returns 0, or 4 when a host did not answer, so that lines of it may be missing."""
    with running_attempt(folder, folder.load()) as attempt:
        store = LogStore.acquire(folder.logs, console.say)
        failures = sync_logs(attempt, store) if store else {}
        known = known_marks(folder.logs)
        for lines in merged(folder.logs, wanted, known):
            console.lines(lines)
        if follow:
            console.flush()
        else:
            console.settle()
        report_unseen(failures, console)
        if follow:
            _follow(attempt, store, known, wanted, console)
        if store:
            store.close()
    return 4 if failures else 0


def _follow(
    attempt: RunningAttempt,
    store: LogStore | None,
    known: Mapping[int, Mark],
    wanted: Wanted,
    console: Console,
) -> None:
    with Interrupts() as interrupts, interrupts.held():
        for event in Monitor(attempt, known, store).events():
            if isinstance(event, Lines):
                if chosen := wanted.choose(event.node_rank, event.text):
                    console.lines(chosen)
                continue
            console.flush()
            if isinstance(event, str):
                console.say(event)
            if interrupts.take() is not None:
                break  # which closes the monitor
    console.settle()
