"""The `logs` command's work: catch up with the hosts, show what is wanted, follow if asked."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.engines.attempt import RunningAttempt
from launcher.follow.monitor import Follow, Lines
from launcher.follow.signals import Interrupts
from launcher.logs.query import Wanted, merged
from launcher.logs.store import LogStore, Mark, known_marks
from launcher.runs.attempt import running_attempt
from launcher.runs.record import RunFolder
from launcher.runs.sync_logs import catch_up
from launcher.terminal.console import Console


def read(folder: RunFolder, wanted: Wanted, console: Console, *, follow: bool) -> int:
    """Returns 0, or 4 when a host could not be seen, whose lines may then be missing."""
    record = folder.load()
    with running_attempt(folder, record) as party:
        store = LogStore.acquire(folder.logs, console.say)
        failures = catch_up(party, store) if store else {}
        known = known_marks(folder.logs)
        for lines in merged(folder.logs, wanted, known):
            console.lines(lines)
        if follow:
            console.flush()
        else:
            console.settle()
        for error in failures.values():
            console.error(f"cannot see {error}")
        if follow:
            _go_on(party, store, known, wanted, console)
        if store:
            store.close()
    return 4 if failures else 0


def _go_on(
    party: RunningAttempt,
    store: LogStore | None,
    known: Mapping[int, Mark],
    wanted: Wanted,
    console: Console,
) -> None:
    follow = Follow(party, store, known)
    with Interrupts() as interrupts, interrupts.held():
        for event in follow.events():
            if isinstance(event, Lines):
                if chosen := wanted.choose(event.node_rank, event.text):
                    console.lines(chosen)
                continue
            console.flush()
            if isinstance(event, str):
                console.say(event)
            if interrupts.take() is not None:
                follow.close()
                break
    console.settle()
