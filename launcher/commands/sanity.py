from . import complete, options
from .options import decimal, flag, number, option, some_seconds


def sanity(
    hosts: str | None = options.HOSTS,
    host_list: str | None = options.HOST_LIST,
    include: str | None = options.INCLUDE,
    exclude: str | None = options.EXCLUDE,
    host: str | None = option(
        "--host",
        "HOST",
        "Test only HOST, with several containers that share its GPUs evenly.",
        completed_by=complete.host_names,
    ),
    containers: int | None = option(
        "--containers",
        "N",
        "Start N containers (default: 2) on the only host, or on the one that --host names.",
        reader=number(2, 256),
    ),
    pairwise: bool = flag("--pairwise", "Measure every pair of nodes and name slow links."),
    min_busbw: float | None = option(
        "--min-busbw", "GB/S", "Fail if the bus bandwidth is below GB/S.", reader=decimal
    ),
    timeout: int = option(
        "--timeout",
        "D",
        "Treat a step that takes longer than D as hung.",
        default="30s",
        reader=some_seconds,
    ),
    max_size: str = option(
        "--max-size", "SIZE", "Measure all-reduce up to SIZE, such as 1g.", default="64m"
    ),
    step_seconds: float | None = option(
        "--step-seconds",
        "S",
        "Estimate the speedup with more nodes for a training step that takes S seconds on one node.",
        reader=decimal,
    ),
    plot: str | None = option(
        "--plot", "FILE", "Write a plot of bandwidth against size to FILE; needs matplotlib."
    ),
    image: str | None = options.IMAGE,
    as_json: bool = options.JSON,
    quiet: bool = options.QUIET,
    verbose: bool = options.VERBOSE,
) -> int:
    """Check the network: run collectives, verify their results and measure bandwidth.

    \b
    ddpctl sanity hosts.yaml --pairwise
    ddpctl sanity hosts.yaml --host gpu1 --containers 2
    """
    from ..hosts import load, override_job, select
    from ..sanity import sanity as check

    console = options.console(quiet, verbose)
    cluster = load(options.hosts_of(hosts, host_list), overridden=["dataset", "workdir"])
    cluster = override_job(select(cluster, include, exclude), {"image": image})
    if host is not None or containers is not None:
        cluster = check.two_containers(cluster, host, containers or 2)
        console.say(check.TWO_CONTAINERS)
    size = check.size_of(max_size)
    limits = check.SanityOptions(timeout, size, pairwise, min_busbw, plot, step_seconds)
    return check.sanity(cluster, limits, console, as_json=as_json)
