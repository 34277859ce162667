"""ddpctl push"""

from __future__ import annotations

from typing import Annotated

import typer

from launcher.commands import options


def push(
    hosts: options.Hosts = None,
    host_list: options.HostList = None,
    image: Annotated[
        bool, typer.Option("--image", help="Only the image (and what else is named).")
    ] = False,
    dataset: Annotated[bool, typer.Option("--dataset", help="Only the dataset.")] = False,
    workdir: Annotated[bool, typer.Option("--workdir", help="Only the code.")] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> int:
    """Image, dataset and code to every host, only what is missing there.

    \b
    ddpctl push hosts.yaml
    ddpctl push hosts.yaml --workdir
    """
    from launcher import push as pushing
    from launcher.hosts import load
    from launcher.remote.node import Node

    console = options.console(quiet, verbose)
    cluster = load(options.hosts_of(hosts, host_list))
    named: dict[pushing.What, bool] = {"image": image, "dataset": dataset, "workdir": workdir}
    what = {key for key, value in named.items() if value or not any(named.values())}
    nodes = [Node(host) for host in cluster.hosts]
    try:
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
