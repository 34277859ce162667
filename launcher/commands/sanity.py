"""ddpctl sanity"""

from __future__ import annotations

from typing import Annotated

import typer

from . import complete, options


def sanity(
    hosts: options.Hosts = None,
    host_list: options.HostList = None,
    include: options.Include = None,
    exclude: options.Exclude = None,
    host: Annotated[
        str | None,
        typer.Option(
            "--host",
            help="Use only this host, as several containers.",
            autocompletion=complete.host_names,
        ),
    ] = None,
    containers: Annotated[
        int,
        typer.Option("--containers", min=2, help="Containers to split --host's GPUs between."),
    ] = 2,
    pairwise: Annotated[
        bool, typer.Option("--pairwise", help="Measure each pair of nodes; name slow links.")
    ] = False,
    min_busbw: Annotated[
        float | None,
        typer.Option("--min-busbw", metavar="GB/S", help="Fail below this bus bandwidth."),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1.0, help="Seconds until a step counts as hung.")
    ] = 30.0,
    max_size: Annotated[
        str, typer.Option("--max-size", metavar="SIZE", help="The largest all-reduce, such as 1g.")
    ] = "64m",
    plot: Annotated[
        str | None, typer.Option("--plot", metavar="FILE", help="Plot bandwidth by size.")
    ] = None,
    image: options.Image = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> int:
    """Check the network: the collectives, their results and bandwidth.

    \b
    ddpctl sanity hosts.yaml --pairwise
    ddpctl sanity hosts.yaml --host gpu1 --containers 2
    """
    from ..hosts import load, override_job, select
    from ..sanity import check

    console = options.console(quiet, verbose)
    unused = ["dataset", "workdir"]
    cluster = load(options.hosts_of(hosts, host_list), overridden=unused)
    cluster = override_job(select(cluster, include, exclude), {"image": image})
    if host is not None:
        cluster = check.two_containers(cluster, host, containers)
        console.say(check.TWO_CONTAINERS)
    wanted = check.SanityOptions(timeout, check.size_of(max_size), pairwise, min_busbw, plot)
    return check.sanity(cluster, wanted, console, as_json=as_json)
