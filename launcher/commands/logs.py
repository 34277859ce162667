from . import options
from .options import flag, number, option


def logs(
    run: str | None = options.RUN,
    hosts: str | None = options.LOOK_ON,
    follow: bool = flag("--follow", "Keep printing until the run ends.", "-f"),
    node: str | None = option("--node", "K", "Only these nodes, such as 0-3,5."),
    rank: str | None = option("--rank", "R", "Only these ranks, such as 0-3,5."),
    host: list[str] | None = options.HOST,
    attempt: int | None = option("--attempt", "N", "Only this attempt.", reader=number(1)),
    tail: int | None = option("--tail", "N", "Only the last N lines.", "-n", reader=number(0)),
    since: str | None = option(
        "--since", "T", "Only lines newer than T: a duration (10m, 2h30m) or a time."
    ),
    grep: str | None = option("--grep", "REGEX", "Only lines that match REGEX."),
    fold: bool = options.FOLD,
    quiet: bool = options.QUIET,
    verbose: bool = options.VERBOSE,
) -> int:
    """Print the logs of all nodes of a run, merged by time.

    \b
    ddpctl logs -f
    ddpctl logs 20261121 --rank 0-3,8 --tail 100
    ddpctl logs --fold --grep loss
    """
    from ..logs.query import LogFilter
    from ..look.logs import pattern, show_logs, since_time, with_nodes_and_ranks
    from ..runs.find import find

    unchecked = LogFilter(
        hosts=host or None, attempt=attempt, tail=tail, since=since_time(since), grep=pattern(grep)
    )
    console = options.console(quiet, verbose, fold=fold)
    folder = find(run, hosts, console)
    log_filter = with_nodes_and_ranks(unchecked, node, rank, folder.load_if_readable(console))
    return show_logs(folder, log_filter, console, follow=follow)
