import typer

from . import options
from .options import flag


def kill(
    target: str | None = options.RUN_OR_HOSTS,
    hosts: str | None = options.LOOK_ON,
    everything: bool = flag("--all", "Stop all your runs on these hosts; remove finished ones."),
    strays: bool = flag("--strays", "List leftovers of dead runs; with -y, kill them."),
    yes: bool = options.YES,
    as_json: bool = options.JSON,
    quiet: bool = options.QUIET,
    verbose: bool = options.VERBOSE,
) -> int:
    """Stop a run on all its hosts and prove that nothing is left. Safe to repeat.

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
        return kill_strays(kill_runs.hosts_for(target, hosts), console, yes=yes, as_json=as_json)
    if everything and not yes and not typer.confirm("Stop all your runs on these hosts?", err=True):
        return 130
    return kill_runs.kill(target, hosts, console, everything=everything, as_json=as_json)
