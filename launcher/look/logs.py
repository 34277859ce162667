"""Show a run's logs: fetch the lines missing on this machine, print all lines, and follow if asked."""

import dataclasses
import time
from contextlib import closing

from ..errors import DdpctlError, HostUnreachable, UsageError
from ..follow.ctrl_c import Interrupts
from ..follow.inbox import NewEntries
from ..follow.monitor import ContactChange, Monitor, Tick
from ..follow.run_lines import RunLines
from ..logs.log_entry import output_in
from ..logs.query import LogFilter, attempts_in, merged
from ..logs.store import LogStore, Marks, known_marks
from ..outcomes import Exit, RunState
from ..runs import attempt_lock
from ..runs.newest_attempt import newest_attempt
from ..runs.record import RunRecord
from ..runs.run_folder import RunFolder
from ..runs.sync_logs import log_store, sync_logs
from ..terminal.console import Console
from ..terminal.host_errors import report_errors
from ..text import names, numbers_in, quoted

POLL = 1.0  # seconds between checks for a restart
UNKNOWN_COUNT = 100_000  # how many nodes or ranks to assume for a run whose record cannot be read


def checked(
    unchecked: LogFilter, nodes: str | None, ranks: str | None, record: RunRecord | None
) -> LogFilter:
    """Return the filter with the nodes and ranks that the user typed.

    record: None if it cannot be read. Raises UsageError if the run, or the chosen attempt, has no
    such host, node or rank, or if the run has no such attempt.
    """
    attempts, where, number = record.attempts if record else [], "the run", unchecked.attempt
    if attempts and number is not None:
        chosen = [each for each in attempts if each.number == number]
        if not chosen:
            what = f"--attempt {number}: the run's last attempt is {attempts[-1].number}"
            raise UsageError(what, "choose an attempt that exists")
        attempts, where = chosen, f"attempt {number}"
    hosts = {node.host for attempt in attempts for node in attempt.nodes}
    unknown = set(unchecked.hosts or ()) - hosts
    if hosts and unknown:
        what = f"--host {min(unknown)}: {where} is on {names(sorted(hosts))}"
        raise UsageError(what, "name one of them")
    node_count = max((len(attempt.nodes) for attempt in attempts), default=0)
    world_size = max((attempt.world_size for attempt in attempts), default=0)
    node_ranks = _numbers("--node", nodes, node_count)
    global_ranks = _numbers("--rank", ranks, world_size)
    return dataclasses.replace(unchecked, nodes=node_ranks, ranks=global_ranks)


def show_logs(
    folder: RunFolder,
    unchecked: LogFilter,
    console: Console,
    *,
    nodes: str | None,
    ranks: str | None,
    follow: bool,
) -> Exit:
    """Print the logs. Return UNREACHABLE if lines could not be copied, INTERRUPTED after a signal.

    unchecked, nodes, ranks: see `checked`. follow: whether to keep printing until the run ends, nobody
    reads stdout anymore, or a signal arrives.
    """
    record = folder.load_if_readable(console)
    if record and record.state is RunState.WAITING:
        say_that_it_waits(folder, console)
    if follow and unchecked.attempt is None and record and record.state.is_starting:
        wait_for_attempt(folder, record.attempt.number - 1, console)
    lines, result = RunLines(console, brief=False), Exit.DONE
    first: int | None = 1  # the first attempt that is not printed yet
    while first is not None:
        with newest_attempt(folder, console) as attempt:
            log_filter = checked(unchecked, nodes, ranks, folder.load_if_readable(console))
            failures = sync_logs(folder, attempt, console)
            shown = known_marks(folder.logs)
            print_recorded(folder, log_filter, shown, lines, first)
            report_errors(failures, console)
            result = Exit.UNREACHABLE if failures else result
            if not follow or unchecked.attempt not in (None, attempt.number):
                return result
            monitor = Monitor(attempt, shown)
            with log_store(folder, console) as store:
                if not follow_to_end(monitor, attempt.number, log_filter, lines, store):
                    return Exit.INTERRUPTED
        missing = {} if console.reader_left else missing_lines(monitor)
        report_errors(missing, console)
        result = Exit.UNREACHABLE if missing else result
        has_succeeded = all(node.succeeded for node in monitor.nodes.values())
        may_restart = unchecked.attempt is None and not has_succeeded
        first = wait_for_attempt(folder, attempt.number, console) if may_restart else None
        unchecked = dataclasses.replace(unchecked, tail=None)  # all lines of later attempts are new
    return result


def say_that_it_waits(folder: RunFolder, console: Console) -> None:
    what = "is waiting in line; `ddpctl ps` shows what it is waiting for"
    console.say(f"run {folder.run_id} {what}")


def follow_to_end(
    monitor: Monitor, number: int, log_filter: LogFilter, lines: RunLines, store: LogStore | None
) -> bool:
    """Print and store the new lines of attempt `number` until it ends. Return False after a signal.

    Also reports when contact with a host is lost or restored.
    """
    stopped_by = None
    with (
        Interrupts() as interrupts,
        interrupts.held(),
        closing(monitor.observations()) as observations,
    ):
        for observation in observations:
            match observation:
                case NewEntries(node_rank, entries):
                    if store:
                        store.append(node_rank, entries, number)
                    lines.show(log_filter.choose(output_in(entries)))
                case ContactChange(texts=texts):
                    for text in texts:
                        lines.console.say(text)
                case Tick():
                    lines.flush()
                    stopped_by = interrupts.take()
                    if stopped_by is not None or lines.console.reader_left:
                        break
        lines.settle()
    return stopped_by is None


def missing_lines(monitor: Monitor) -> dict[str, DdpctlError]:
    """Return an error for each host whose last lines were not read. A restart does not copy them."""
    error = HostUnreachable("its last lines are missing", "that host still has them")
    return {node.host: error for node in monitor.nodes.values() if not node.was_read}


def wait_for_attempt(folder: RunFolder, number: int, console: Console) -> int | None:
    """Wait until an attempt after `number` has started on this machine. Return its number.

    Return None if the run has ended, no process takes care of it, or nobody reads stdout anymore.
    """
    with Interrupts():
        while not console.reader_left:
            # check this before reading the record, because a process may change it and then end
            may_start = attempt_lock.is_taken_care_of(folder)
            record = folder.load_if_readable(console)
            if record and record.attempt.number > number and record.attempt.started:
                return record.attempt.number
            if not (may_start and record and folder.goes_on(record)):
                return None
            time.sleep(POLL)
    return None


def print_recorded(
    folder: RunFolder, log_filter: LogFilter, known: Marks, lines: RunLines, first: int = 1
) -> None:
    """Print this machine's copy of the logs, from attempt `first` on, up to the marks `known`.

    If there are several attempts, print the number of each on stderr before its lines. If the filter has
    a tail, print the last lines of all attempts.
    """
    chosen: list[int | None] = [log_filter.attempt]
    if log_filter.attempt is None and log_filter.tail is None:
        chosen = [number for number in attempts_in(folder.logs, known) if number >= first]
    for number in chosen:
        if len(chosen) > 1:
            lines.console.say(f"attempt {number}:")
        for output in merged(folder.logs, dataclasses.replace(log_filter, attempt=number), known):
            if lines.console.reader_left:  # as after `| head`
                return
            lines.show(output)
        lines.settle()


def _numbers(flag: str, text: str | None, count: int) -> frozenset[int] | None:
    try:
        return None if text is None else numbers_in(text, count or UNKNOWN_COUNT)
    except ValueError as error:
        what = f"{flag} {quoted(text or '')}: {error}"
        raise UsageError(what, "pass numbers and ranges, as in 0-3,5") from None
