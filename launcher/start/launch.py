"""The `launch` command."""

import dataclasses

from ..errors import UsageError
from ..follow.attempt_end import report_next
from ..follow.hooks import ExitHook
from ..hosts import Cluster
from ..outcomes import Outcome
from ..plan.plan import LaunchOptions, Plan
from ..run_id import NAME, new_run_id
from ..terminal.console import Console
from ..text import counted, quoted
from .check_command import check_command
from .request import Request
from .restart import restart_until_done
from .run_attempt import run_attempt


def new_run(cluster: Cluster, options: LaunchOptions) -> Request:
    """Return the request for a new run. Raises UsageError for an invalid name or too many nodes."""
    if options.nodes and options.nodes > cluster.nnodes:
        what = f"--nodes {options.nodes}: {cluster.source} has {counted(cluster.nnodes, 'host')}"
        raise UsageError(what, "ask for fewer nodes")
    if options.name and not NAME.fullmatch(options.name):
        what = f"--name {quoted(options.name)}: not a valid name"
        remedy = (
            "use up to 41 characters (a-z, 0-9, `_`, `.`, `-`), and start with a letter or digit"
        )
        raise UsageError(what, remedy)
    return Request(cluster, options, new_run_id(options.name))


def launch_run(request: Request, console: Console) -> Outcome:
    """Launch a new run, and return how it ended or how this command left it."""
    check_or_hint(request, console)
    return run_to_the_end(request, console)


def dry_run(request: Request, console: Console) -> Plan:
    """Return the plan as far as it is known without the hosts; with --nodes N, for the first N hosts."""
    check_or_hint(request, console)
    hosts = request.cluster.hosts[: request.options.nodes]
    cluster = dataclasses.replace(request.cluster, hosts=hosts)
    return dataclasses.replace(request, cluster=cluster).plan()


def run_to_the_end(request: Request, console: Console) -> Outcome:
    """Run an attempt and the restarts that the job allows, then --on-exit. Return the outcome."""
    with ExitHook(request.folder, console) as hook:
        outcome = run_attempt(request, console)
        outcome = restart_until_done(request.folder, request.options, outcome, console)
        hook.outcome = outcome
        if outcome.state.is_final and (record := request.folder.load_if_readable(console)):
            report_next(record, console)
    return outcome


def check_or_hint(request: Request, console: Console) -> None:
    """Check the job's command, unless --no-check is set. Prints the hint of `check_command`."""
    if request.options.check and (hint := check_command(request.cluster.job)):
        console.say(hint)
