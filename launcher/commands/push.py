"""ddpctl push"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.commands import options
from launcher.errors import UsageError

if TYPE_CHECKING:
    from launcher.hosts import Cluster
    from launcher.ssh.node import Node
    from launcher.terminal.console import Console


def push(
    hosts: options.Hosts = None,
    host_list: options.HostList = None,
    include: options.Include = None,
    exclude: options.Exclude = None,
    image: Annotated[
        bool, typer.Option("--image", help="Push only the image (and other parts you name).")
    ] = False,
    dataset: Annotated[bool, typer.Option("--dataset", help="Push only the dataset.")] = False,
    workdir: Annotated[bool, typer.Option("--workdir", help="Push only the code.")] = False,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Push nothing; delete data and code that no run uses."),
    ] = False,
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", help="With --prune: do not ask. Required without a terminal."),
    ] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> int:
    """Send image, dataset and code to the hosts that lack them.

    \b
    ddpctl push hosts.yaml
    ddpctl push hosts.yaml --workdir
    ddpctl push hosts.yaml --prune
    """
    from launcher import push as pushing
    from launcher.hosts import load, select
    from launcher.ssh.node import connected

    console = options.console(quiet, verbose)
    cluster = select(load(options.hosts_of(hosts, host_list)), include, exclude)
    named: dict[pushing.Part, bool] = {"image": image, "dataset": dataset, "workdir": workdir}
    parts = {part for part, wanted in named.items() if wanted or not any(named.values())}
    with connected(cluster.hosts) as nodes:
        if prune:
            return _prune(nodes, cluster, console, as_json, yes)
        progress = pushing.progress_for(console)
        try:
            result = pushing.push(nodes, cluster, parts=parts, progress=progress, only=True)
        except pushing.HostsNotReady as error:
            if as_json:
                console.json(error.report.document())
            console.say(error.report.summary())
            raise
    if as_json:
        console.json(result.report.document())
    console.say(result.report.summary())
    return 0


def _prune(nodes: list[Node], cluster: Cluster, console: Console, as_json: bool, yes: bool) -> int:
    from launcher import push as pushing
    from launcher.push.report import format_bytes

    if not yes and (as_json or not (sys.stdin.isatty() and sys.stderr.isatty())):
        raise UsageError("push --prune deletes data on the hosts: without a terminal it needs -y")

    def confirm(listed: str) -> bool:
        if not as_json:
            console.print(listed)
        return yes or typer.confirm("delete these?", err=True)

    result = pushing.prune(nodes, cluster, confirm)
    if as_json:
        console.json(result.document())
    if not result.trees:
        console.say("nothing to delete: runs or this hosts file use all data and code on the hosts")
    elif result.removed:
        console.say(f"deleted {len(result.trees)} folders, {format_bytes(result.size)}")
    return 0
