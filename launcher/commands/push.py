"""ddpctl push"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UsageError
from . import options

if TYPE_CHECKING:
    from ..terminal.console import Console


def push(
    hosts: options.Hosts = None,
    host_list: options.HostList = None,
    include: options.Include = None,
    exclude: options.Exclude = None,
    image: Annotated[
        bool, typer.Option("--image", help="Push only the image (and other parts you name).")
    ] = False,
    dataset: Annotated[
        bool,
        typer.Option("--dataset", help="Push only the dataset; `--dataset DIR` overrides it."),
    ] = False,
    dataset_folder: Annotated[str | None, typer.Option("--dataset-folder", hidden=True)] = None,
    workdir: Annotated[
        bool, typer.Option("--workdir", help="Push only the code; `--workdir DIR` overrides it.")
    ] = False,
    workdir_folder: Annotated[str | None, typer.Option("--workdir-folder", hidden=True)] = None,
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
    ddpctl push hosts.yaml --dataset /data/imagenet
    ddpctl push hosts.yaml --prune
    """
    from .. import push as pushing
    from ..hosts import cluster_of
    from ..ssh.node import connected

    console = options.console(quiet, verbose)
    folders = {"dataset": dataset_folder, "workdir": workdir_folder}
    cluster = cluster_of(options.hosts_of(hosts, host_list), folders, include, exclude)
    named: dict[pushing.Part, bool] = {"image": image, "dataset": dataset, "workdir": workdir}
    parts = {part for part, wanted in named.items() if wanted or not any(named.values())}
    with connected(cluster.hosts) as nodes:
        if prune:
            pruned = pushing.prune(nodes, cluster, _confirm(console, as_json, yes), console)
            if as_json:
                console.json(pruned.document())
            console.say(pruned.summary())
            return 0
        progress = pushing.progress_for(console)
        try:
            with console.step("pushing what the hosts lack"):
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


def _confirm(console: Console, as_json: bool, yes: bool) -> Callable[[str], bool]:
    """Asks on a terminal. UsageError if there is none to ask on and no -y."""
    if not yes and (as_json or not (sys.stdin.isatty() and sys.stderr.isatty())):
        raise UsageError("push --prune deletes data on the hosts: without a terminal it needs -y")

    def confirm(listed: str) -> bool:
        if not as_json:
            console.print(listed)
        return yes or typer.confirm("delete these?", err=True)

    return confirm
