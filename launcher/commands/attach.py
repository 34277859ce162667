"""ddpctl attach"""

from __future__ import annotations

from . import options


def attach(
    run: options.Run = None,
    hosts: options.LookOn = None,
    on_exit: options.OnExit = None,
    on_event: options.OnEvent = None,
    fold: options.Folded = False,
    plain: options.Plain = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> int:
    """Follow a detached run as `launch` does. Ctrl-C stops following, not the run.

    Exits as the run did. --on-exit and --on-event are in addition to those given to `launch`.

    \b
    ddpctl attach
    ddpctl attach 20261121-1530 --hosts hosts.yaml
    """
    from ..runs.find import find
    from ..start import attach as attaching
    from ..start import exit_hook

    console = options.console(quiet, verbose, plain, fold)
    folder = find(run, hosts, console)
    code = attaching.attach(folder, console, on_event)
    if on_exit is not None and (record := folder.load()).state not in exit_hook.LIVE:
        exit_hook.call(on_exit, folder, record, code, console)
    return code
