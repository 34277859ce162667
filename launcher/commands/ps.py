from ..errors import UsageError
from . import options
from .options import flag, option, some_seconds


def ps(
    hosts: str | None = options.HOSTS,
    host_list: str | None = options.HOST_LIST,
    everything: bool = flag("--all", "Show finished runs too.", "-a"),
    per_node: bool = flag("--per-node", "Show one row per node instead of one per run."),
    watch: bool = flag("--watch", "Refresh the table until Ctrl-C.", "-w"),
    interval: int = option(
        "--interval", "D", "Refresh every D.", default="2s", reader=some_seconds
    ),
    as_json: bool = options.JSON,
    quiet: bool = options.QUIET,
    verbose: bool = options.VERBOSE,
) -> int:
    """List runs and what uses each GPU, as the hosts report it.

    Without HOSTS, it asks the hosts in ./hosts.yaml, if that exists, and the hosts of the live runs
    (with --all, of all runs) recorded on this machine. If no host of a recorded live run answers, its
    state is UNKNOWN. GPUs in the same state share a line. Lines that need attention come first:
    processes that belong to no run, and idle GPUs of a busy run. Processes and utilization are
    shown only for NVIDIA GPUs.

    \b
    ddpctl ps hosts.yaml
    ddpctl ps hosts.yaml --all --json
    ddpctl ps hosts.yaml --per-node --watch
    """
    from ..look.ps import Selection, show_runs, watch_runs

    console = options.console(quiet, verbose)
    given = options.hosts_of(hosts, host_list)
    selection = Selection(given, everything, per_node)
    if not watch:
        return show_runs(selection, console, as_json=as_json)
    if as_json:
        raise UsageError("--watch cannot print JSON", "run `ddpctl ps --json` repeatedly")
    return watch_runs(selection, console, interval)
