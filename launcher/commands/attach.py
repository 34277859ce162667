from ..outcomes import Outcome
from . import options


def attach(
    run: str | None = options.RUN,
    hosts: str | None = options.LOOK_ON,
    on_exit: str | None = options.ON_EXIT,
    on_event: str | None = options.ON_EVENT,
    fold: bool = options.FOLD,
    plain: bool = options.PLAIN,
    quiet: bool = options.QUIET,
    verbose: bool = options.VERBOSE,
) -> Outcome:
    """Follow a detached run as `launch` does. Ctrl-C stops following, not the run.

    The exit code is the run's. Commands given to `launch` with --on-exit and --on-event still run.

    \b
    ddpctl attach
    ddpctl attach 20261121-1530 --hosts hosts.yaml
    """
    from ..follow import hooks
    from ..runs.find import find
    from ..start import attach as attaching

    console = options.console(quiet, verbose, plain, fold)
    folder = find(run, hosts, console)
    outcome = attaching.attach(folder, console, on_event)
    if on_exit is not None and not (record := folder.load()).state.is_live:
        hooks.run_on_exit(on_exit, folder, record, outcome.exit, console)
    return outcome
