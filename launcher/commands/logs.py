from . import complete, options
from .options import flag, option


def logs(
    run: str | None = options.RUN,
    hosts: str | None = options.LOOK_ON,
    follow: bool = flag("--follow", "Keep printing until the run ends.", "-f"),
    node: str | None = option("--node", "Only these nodes, such as 0-3,5.", metavar="K"),
    rank: str | None = option("--rank", "Only these ranks, such as 0-3,5.", metavar="R"),
    host: list[str] | None = option(
        "--host", "Only this host; repeatable.", autocompletion=complete.host_names
    ),
    attempt: int | None = option("--attempt", "Only this attempt.", metavar="N"),
    tail: int | None = option(
        "--tail", "Only the last N lines.", "-n", min=0, max=10**9, metavar="N"
    ),
    since: str | None = option(
        "--since", "Only lines newer than T: a duration (10m, 2h30m) or a time.", metavar="T"
    ),
    grep: str | None = option("--grep", "Only lines that match REGEX.", metavar="REGEX"),
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
