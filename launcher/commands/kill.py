from ..errors import UsageError
from ..text import quoted
from . import complete, options
from .options import argument, flag


def kill(
    run_or_hosts: str | None = argument(
        "[RUN]",
        "A run id or a unique prefix of one, or HOSTS for your only live run there (default: the "
        "newest run recorded on this machine).",
        complete.runs,
    ),
    hosts: str | None = options.LOOK_ON,
    everything: bool = flag(
        "--all", "Stop all your runs on the hosts; remove the containers of finished ones."
    ),
    strays: bool = flag(
        "--strays",
        "Stop no live run, but list what is left of dead ones (of RUN if you name it, otherwise of "
        "all); with -y, kill it.",
    ),
    yes: bool = options.YES,
    as_json: bool = options.JSON,
    quiet: bool = options.QUIET,
    verbose: bool = options.VERBOSE,
) -> int:
    """Stop a run on all its hosts and verify that nothing is left. Safe to repeat.

    Without RUN or HOSTS, it stops the newest run recorded on this machine; on a terminal, it asks
    first. While a command here is still checking or pushing for another run, it stops nothing and
    names both runs. A resume of the killed run that is still checking or pushing here does not start;
    if it runs on another machine, press Ctrl-C there.
    HOSTS alone, as an argument or with --hosts, stands for your only live run there. If several are
    live, it stops none; if none is live, it removes the containers of your newest run there.

    \b
    ddpctl kill
    ddpctl kill 20261121-1530
    ddpctl kill hosts.yaml --all -y
    ddpctl kill hosts.yaml --strays
    """
    from ..runs.find import run_and_hosts
    from ..stop.choose_runs import read_hosts, read_target
    from ..stop.kill import kill_target
    from ..stop.strays import kill_strays

    console = options.console(quiet, verbose)
    run, hosts = run_and_hosts(run_or_hosts, hosts)
    if everything and run:
        what = f"--all stops all your runs on the hosts, not only {quoted(run)}"
        raise UsageError(what, f"run `ddpctl kill {run}` or `ddpctl kill HOSTS --all`")
    if strays:
        cluster = read_hosts(run, hosts, console)
        return kill_strays(cluster, run, console, yes=yes, as_json=as_json)
    target = read_target(run, hosts, console, everything=everything)
    return kill_target(target, console, yes=yes, as_json=as_json)
