"""ddpctl clean"""

from __future__ import annotations

from typing import Annotated

import typer

from launcher.commands import options


def clean(
    hosts: options.Hosts = None,
    host_list: options.HostList = None,
    kill: Annotated[
        bool, typer.Option("--kill", help="Stop the runs that are alive there, and clean too.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> int:
    """Remove every trace of ddpctl from the hosts: ~/.ddpctl and its containers. Lists, then asks.

    Checkpoints, logs and pushed data on the hosts go with it: `ddpctl fetch` what you want to keep.
    Hosts of a run that is alive are left as they are. Images, and this machine's own record of its
    runs, stay. Without a terminal and without -y it only lists.

    \b
    ddpctl clean hosts.yaml
    ddpctl clean hosts.yaml --kill -y
    """
    import sys

    from launcher.stop import clean as cleaning

    console = options.console(quiet, verbose)

    def sure() -> bool | None:
        if yes:
            return True
        if as_json or not (sys.stdin.isatty() and sys.stderr.isatty()):
            console.say("nothing removed; -y removes it")
            return None
        if not typer.confirm("remove all of this?", err=True):
            console.say("nothing removed")
            return False
        return True

    named = options.hosts_of(hosts, host_list)
    return cleaning.clean(named, console, kill=kill, as_json=as_json, sure=sure)
