import datetime
import re
import time

from ..errors import UsageError
from ..text import duration_remedy, quoted, seconds_in
from . import options
from .options import flag, number, option


def since_time(flag: str, text: str) -> float:
    """Return the unix time that `text` stands for: a duration before now, or an RFC 3339 time."""
    try:
        ago = seconds_in(text)
        if ago is None:
            return datetime.datetime.fromisoformat(text).timestamp()
        return time.time() - ago
    except (ValueError, OverflowError):
        remedy = f"{duration_remedy(text)}, or a time such as 2026-11-21T15:30:00Z"
        raise UsageError(f"{flag} {quoted(text)}: not a duration or a time", remedy) from None


def pattern(flag: str, text: str) -> re.Pattern[bytes]:
    try:
        return re.compile(text.encode(errors="surrogateescape"))
    except re.error as error:
        what = f"{flag} {quoted(text)}: not a regular expression: {error}"
        raise UsageError(what, "escape special characters with `\\`") from None


def logs(
    run: str | None = options.RUN,
    hosts: str | None = options.LOOK_ON,
    follow: bool = flag("--follow", "Keep printing until the run ends.", "-f"),
    node: str | None = option("--node", "K", "Only lines of nodes K, such as 0-3,5."),
    rank: str | None = option("--rank", "R", "Only lines of ranks R, such as 0-3,5."),
    host: list[str] | None = options.HOST,
    attempt: int | None = option("--attempt", "N", "Only lines of attempt N.", reader=number(1)),
    tail: int | None = option("--tail", "N", "Only the last N lines.", "-n", reader=number(0)),
    since: float | None = option(
        "--since",
        "T",
        "Only lines newer than T: a duration (10m, 2h30m) or a time.",
        reader=since_time,
    ),
    grep: re.Pattern[bytes] | None = option(
        "--grep", "REGEX", "Only lines that match REGEX.", reader=pattern
    ),
    fold: bool = options.FOLD,
    quiet: bool = options.QUIET,
    verbose: bool = options.VERBOSE,
) -> int:
    """Print a run's logs from all nodes, merged by time.

    \b
    ddpctl logs -f
    ddpctl logs 20261121 --rank 0-3,8 --tail 100
    ddpctl logs --fold --grep loss
    """
    from ..logs.query import LogFilter
    from ..look.logs import show_logs
    from ..runs.find import find

    unchecked = LogFilter(hosts=host or None, attempt=attempt, tail=tail, since=since, grep=grep)
    console = options.console(quiet, verbose, fold=fold)
    folder = find(run, hosts, console)
    return show_logs(folder, unchecked, console, nodes=node, ranks=rank, follow=follow)
