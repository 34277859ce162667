from ..outcomes import Outcome
from . import options
from .options import flag, hosts_option


def resume(
    target: str | None = options.RUN,
    hosts: str | None = hosts_option("Use these hosts instead of the run's own."),
    exclude: str | None = options.EXCLUDE,
    detach: bool = options.DETACH,
    force: bool = flag("--force", "Resume even if the run succeeded."),
    on_exit: str | None = options.ON_EXIT,
    on_event: str | None = options.ON_EVENT,
    fold: bool = options.FOLD,
    plain: bool = options.PLAIN,
    quiet: bool = options.QUIET,
    verbose: bool = options.VERBOSE,
) -> Outcome:
    """Start a run's next attempt from its newest checkpoint.

    It runs the same command, with the code and data as they are in their folders now. If another
    machine started the run, it runs the command in HOSTS, because the hosts do not report theirs.

    \b
    ddpctl resume
    ddpctl resume 20261121-1530 --exclude gpu3
    ddpctl resume 20261121-1530 --hosts fewer.yaml
    """
    from ..start import resume as resuming

    console = options.console(quiet, verbose, plain, fold)
    hooks = {"on_exit": on_exit, "on_event": on_event}
    return resuming.resume(target, hosts, exclude, console, detach=detach, force=force, **hooks)
