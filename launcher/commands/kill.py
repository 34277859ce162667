import typer

from ..errors import UsageError
from . import options
from .options import flag


def kill(
    target: str | None = options.RUN,
    hosts: str | None = options.LOOK_ON,
    everything: bool = flag("--all", "Stop all your runs on these hosts; remove finished ones."),
    strays: bool = flag("--strays", "List leftovers of dead runs; with -y, kill them."),
    yes: bool = options.YES,
    as_json: bool = options.JSON,
    quiet: bool = options.QUIET,
    verbose: bool = options.VERBOSE,
) -> int:
    """Stop a run on all its hosts and verify that nothing is left. Safe to repeat.

    Without RUN, stops the newest run of this machine; on a terminal, it asks first.

    \b
    ddpctl kill
    ddpctl kill 20261121-1530
    ddpctl kill hosts.yaml --all -y
    ddpctl kill hosts.yaml --strays
    """
    from ..stop import kill as kill_runs
    from ..stop.strays import kill_strays

    console = options.console(quiet, verbose)
    if strays:
        cluster, _ = kill_runs.hosts_and_run(target, hosts, console)
        return kill_strays(cluster, console, yes=yes, as_json=as_json)

    def confirm(question: str) -> bool:
        if yes or options.can_ask():
            return yes or typer.confirm(question, err=True)
        if everything:
            raise UsageError("--all stops every run of yours on these hosts", "pass -y as well")
        return True  # a script without a RUN means the newest run

    return kill_runs.kill(
        target, hosts, console, everything=everything, as_json=as_json, confirm=confirm
    )
