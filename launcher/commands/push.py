import typer

from ..errors import UsageError
from ..terminal import ask
from . import options
from .options import flag


def push(
    hosts: str | None = options.HOSTS,
    host_list: str | None = options.HOST_LIST,
    include: str | None = options.INCLUDE,
    exclude: str | None = options.EXCLUDE,
    job: str | None = options.JOB,
    image: bool = flag(
        "--image", "Push only the image; can be combined with --dataset and --workdir."
    ),
    dataset: bool = flag(
        "--dataset", "Push only the dataset; can be combined with --image and --workdir."
    ),
    workdir: bool = flag(
        "--workdir", "Push only the code; can be combined with --image and --dataset."
    ),
    prune: bool = flag("--prune", "Push nothing; delete pushed data and code that no run uses."),
    yes: bool = flag(
        "--yes", "Do not ask; --prune needs it with --json or without a terminal.", "-y"
    ),
    as_json: bool = options.JSON,
    quiet: bool = options.QUIET,
    verbose: bool = options.VERBOSE,
) -> None:
    """Send the image, dataset and code to the hosts and spares.

    \b
    ddpctl push hosts.yaml
    ddpctl push hosts.yaml --workdir
    ddpctl push hosts.yaml --image --dataset
    ddpctl push hosts.yaml --prune
    """
    from ..hosts import cluster_of
    from ..push import push as pushing
    from ..push.push_report import HostsNotReady, HostsResult
    from ..ssh.host_connection import connected
    from ..stop.prune_pushed import prune_unused

    console = options.console(quiet, verbose)
    if prune and not yes and (as_json or not ask.can_ask()):
        why = "with --json" if as_json else "without a terminal"
        what = f"push --prune deletes data on the hosts, and cannot ask for confirmation {why}"
        raise UsageError(what, "pass -y")

    def confirm(listed: str, total: str) -> bool:
        if not as_json:
            console.print(listed)
        return yes or typer.confirm(f"Delete all of this ({total})?", err=True)

    cluster = cluster_of(options.hosts_of(hosts, host_list), {}, include, exclude, job_file=job)
    chosen: dict[pushing.Part, bool] = {"image": image, "dataset": dataset, "workdir": workdir}
    parts = {part for part, given in chosen.items() if given} or {*chosen}
    with connected(cluster.hosts) as connections, connected(cluster.spares) as spares:
        try:
            if prune:
                report: HostsResult = prune_unused(
                    connections, cluster, confirm, console, spares, parts
                )
            else:
                with console.step("pushing what is missing"):
                    report = pushing.push(
                        connections, cluster, parts=parts, console=console, spares=spares
                    ).report
        except HostsNotReady as error:
            if as_json:
                console.json(error.report.document())
            console.say(error.report.summary())
            raise
    if as_json:
        console.json(report.document())
    console.say(report.summary())
