"""ddpctl attach"""

from __future__ import annotations

from launcher.commands import options


def attach(
    run: options.Run = None,
    hosts: options.LookOn = None,
    plain: options.Plain = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> int:
    """Follow a detached run as `launch` does, with its exit code. Ctrl-C leaves; the run goes on.

    \b
    ddpctl attach
    ddpctl attach 20261121-1530 --hosts hosts.yaml
    """
    from launcher import attach as attaching
    from launcher.runs import find

    return attaching.attach(find(run, hosts), options.console(quiet, verbose, plain))
