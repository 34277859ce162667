import time

from . import options
from .options import option


def check(
    hosts: str | None = options.HOSTS,
    host_list: str | None = options.HOST_LIST,
    include: str | None = options.INCLUDE,
    exclude: str | None = options.EXCLUDE,
    job: str | None = options.JOB,
    clear: str | None = option(
        "--clear", "HOST", "Forget that HOST was blamed for failures, and exit without checking."
    ),
    as_json: bool = options.JSON,
    quiet: bool = options.QUIET,
    verbose: bool = options.VERBOSE,
) -> int:
    """Check all hosts for anything that would make a launch fail or run slowly.

    Each problem is printed with its remedy. Nothing is installed on a host, and at most an empty
    ~/.ddpctl is left behind. Problems with spares are only warnings.

    \b
    ddpctl check hosts.yaml
    ddpctl check -H gpu1:8,gpu2:8 --json
    """
    from ..hosts import cluster_of
    from ..preflight.blamed import clear_blame
    from ..preflight.check import survey_all
    from ..preflight.survey_report import document, print_survey
    from ..ssh.host_connection import connected
    from ..start.check_command import check_command
    from ..text import counted

    console = options.console(quiet, verbose)
    if clear is not None:
        cleared = clear_blame(clear)
        now = "is no longer" if cleared else "was not"
        console.say(f"{clear} {now} blamed for a failure")
        if as_json:
            console.json({"version": 1, "host": clear, "cleared": cleared})
        return 0
    cluster = cluster_of(options.hosts_of(hosts, host_list), {}, include, exclude, job_file=job)
    if hint := check_command(cluster.job):
        console.say(hint)
    began = time.monotonic()
    hosts_and_spares = counted(len(cluster.hosts) + len(cluster.spares), "host")
    with (
        connected(cluster.hosts) as connections,
        connected(cluster.spares) as spares,
        console.step(f"checking {hosts_and_spares}"),
    ):
        survey = survey_all(connections, spares, cluster, with_containers=True)
    if as_json:
        console.json(document(survey, time.monotonic() - began))
    else:
        print_survey(survey, console)
    return survey.exit_code
