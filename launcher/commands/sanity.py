from . import complete, options
from .options import flag, option


def sanity(
    hosts: str | None = options.HOSTS,
    host_list: str | None = options.HOST_LIST,
    include: str | None = options.INCLUDE,
    exclude: str | None = options.EXCLUDE,
    host: str | None = option(
        "--host", "Use only this host, with several containers.", autocompletion=complete.host_names
    ),
    containers: int = option(
        "--containers", "Containers to split the host's GPUs across.", default=2, min=2
    ),
    pairwise: bool = flag("--pairwise", "Measure every pair of nodes and name slow links."),
    min_busbw: float | None = option(
        "--min-busbw", "Fail below this bus bandwidth.", metavar="GB/S"
    ),
    timeout: float = option(
        "--timeout", "Seconds before a step counts as hung.", default=30.0, min=1.0
    ),
    max_size: str = option(
        "--max-size", "Largest all-reduce, such as 1g.", default="64m", metavar="SIZE"
    ),
    step_seconds: float | None = option(
        "--step-seconds",
        "What a training step computes on one node, for the speedup of several.",
        metavar="S",
        min=0.000001,
    ),
    plot: str | None = option("--plot", "Plot bandwidth against size.", metavar="FILE"),
    image: str | None = options.IMAGE,
    as_json: bool = options.JSON,
    quiet: bool = options.QUIET,
    verbose: bool = options.VERBOSE,
) -> int:
    """Check the network: the collectives, their results and bandwidth.

    \b
    ddpctl sanity hosts.yaml --pairwise
    ddpctl sanity hosts.yaml --host gpu1 --containers 2
    """
    from ..hosts import load, override_job, select
    from ..sanity import sanity as check

    console = options.console(quiet, verbose)
    unused = ["dataset", "workdir"]
    cluster = load(options.hosts_of(hosts, host_list), overridden=unused)
    cluster = override_job(select(cluster, include, exclude), {"image": image})
    if host is not None:
        cluster = check.two_containers(cluster, host, containers)
        console.say(check.TWO_CONTAINERS)
    wanted = check.SanityOptions(
        timeout, check.size_of(max_size), pairwise, min_busbw, plot, step_seconds
    )
    return check.sanity(cluster, wanted, console, as_json=as_json)
