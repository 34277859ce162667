"""ddpctl push"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.commands import options

if TYPE_CHECKING:
    from launcher.hosts import Cluster
    from launcher.ssh.node import Node
    from launcher.terminal.console import Console


def push(
    hosts: options.Hosts = None,
    host_list: options.HostList = None,
    image: Annotated[
        bool, typer.Option("--image", help="Only the image (and what else is named).")
    ] = False,
    dataset: Annotated[bool, typer.Option("--dataset", help="Only the dataset.")] = False,
    workdir: Annotated[bool, typer.Option("--workdir", help="Only the code.")] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Send nothing; remove what no run uses from the hosts.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --prune: do not ask.")] = False,
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
    from launcher.hosts import load
    from launcher.ssh.node import Node

    console = options.console(quiet, verbose)
    cluster = load(options.hosts_of(hosts, host_list))
    named: dict[pushing.What, bool] = {"image": image, "dataset": dataset, "workdir": workdir}
    what = {key for key, value in named.items() if value or not any(named.values())}
    nodes = [Node(host) for host in cluster.hosts]
    try:
        if prune:
            return _prune(nodes, cluster, console, as_json, yes)
        report = pushing.push(
            nodes, cluster, what=what, progress=pushing.progress_for(console), only=True
        ).report
    except pushing.HostsNotReady as error:
        if as_json:
            console.json(error.report.document())
        console.say(error.report.summary())
        raise
    finally:
        for node in nodes:
            node.close()
    if as_json:
        console.json(report.document())
    console.say(report.summary())
    return 0


def _prune(nodes: list[Node], cluster: Cluster, console: Console, as_json: bool, yes: bool) -> int:
    """Lists, asks where somebody can answer, removes."""
    from launcher import push as pushing
    from launcher.push.report import in_words

    def sure(listed: str) -> bool:
        if not as_json:
            console.print(listed)
        asked = not yes and not as_json and sys.stdin.isatty() and sys.stderr.isatty()
        return not asked or typer.confirm("remove these?", err=True)

    done = pushing.prune(nodes, cluster, pushing.progress_for(console), sure=sure)
    if as_json:
        console.json(done.document())
    freed = in_words(sum(tree.size for _, tree in done.trees))
    if not done.trees:
        console.say("nothing to remove: a run, or this hosts file, uses all that the hosts have")
    elif done.removed:
        console.say(f"removed {len(done.trees)} folders, {freed}")
    return 0
