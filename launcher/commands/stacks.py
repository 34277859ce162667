from . import options
from .options import flag


def stacks(
    run: str | None = options.RUN,
    hosts: str | None = options.LOOK_ON,
    all_threads: bool = flag("--all-threads", "Show every Python thread, not only the main one."),
    as_json: bool = options.JSON,
    quiet: bool = options.QUIET,
    verbose: bool = options.VERBOSE,
) -> int:
    """Print every rank's Python stack without disturbing the run.

    Ranks at the same place are grouped, the largest group first. The last lines name the stragglers.

    \b
    ddpctl stacks
    ddpctl stacks 20261121 --hosts hosts.yaml
    """
    from ..look import stacks as show_stacks
    from ..runs.find import find

    console = options.console(quiet, verbose)
    folder = find(run, hosts, console)
    return show_stacks.stacks(folder, console, all_threads=all_threads, as_json=as_json)
