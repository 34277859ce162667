"""ddpctl sanity"""

from __future__ import annotations

from typing import Annotated

import typer

from launcher.commands import complete, options


def sanity(
    hosts: options.Hosts = None,
    host_list: options.HostList = None,
    host: Annotated[
        str | None,
        typer.Option(
            "--host",
            help="Only this host, as several containers.",
            autocompletion=complete.host_names,
        ),
    ] = None,
    containers: Annotated[
        int,
        typer.Option("--containers", min=2, help="Containers that --host's GPUs are split into."),
    ] = 2,
    pairwise: Annotated[
        bool, typer.Option("--pairwise", help="Measure each pair of nodes; name what is slow.")
    ] = False,
    min_busbw: Annotated[
        float | None, typer.Option("--min-busbw", metavar="GB/S", help="Fail below this.")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1.0, help="Seconds until a collective counts as hung.")
    ] = 30.0,
    max_size: Annotated[
        str, typer.Option("--max-size", metavar="SIZE", help="The largest all-reduce: 64m, 1g.")
    ] = "64m",
    plot: Annotated[
        str | None, typer.Option("--plot", metavar="FILE", help="Draw bandwidth by size.")
    ] = None,
    image: Annotated[str | None, typer.Option("--image", help="In job.image's place.")] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> int:
    """Check and measure the collectives between the nodes.

    They run in your own image: is it the network or the training?

    \b
    ddpctl sanity hosts.yaml --pairwise
    ddpctl sanity hosts.yaml --host gpu1 --containers 2
    """
    from launcher.hosts import load, override_job
    from launcher.sanity import check

    console = options.console(quiet, verbose)
    unused = ["dataset", "workdir"]
    cluster = load(options.hosts_of(hosts, host_list), overridden=unused)
    cluster = override_job(cluster, {"image": image})
    if host is not None:
        cluster = check.two_containers(cluster, host, containers)
        console.say(check.TWO_CONTAINERS)
    asked = check.Asked(timeout, check.size_of(max_size), pairwise, min_busbw, plot)
    return check.sanity(cluster, asked, console, as_json=as_json)
