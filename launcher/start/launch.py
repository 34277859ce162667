"""The `launch` command."""

import dataclasses

from ..errors import UsageError
from ..follow.attempt_end import report_next
from ..follow.ctrl_c import Interrupts
from ..follow.hooks import ExitHook
from ..hosts import Cluster
from ..outcomes import Outcome
from ..plan.launch_options import LaunchOptions
from ..plan.plan import Plan
from ..run_id import NAME, new_run_id
from ..runs.attempt_lock import locks_released_at_end
from ..terminal.console import Console
from ..text import counted, quoted
from .check_command import check_command
from .request import Request
from .restart import restart_until_done
from .run_attempt import run_attempt


def new_run(cluster: Cluster, options: LaunchOptions, console: Console) -> Request:
    """Return the request for a new run. Unless --no-check is set, check the job's command first.

    Prints the hint of `check_command`. Raises UsageError for an invalid name, too many nodes or a
    command that cannot work.
    """
    if options.nodes and options.nodes > cluster.nnodes:
        what = f"--nodes {options.nodes}: {cluster.source} has {counted(cluster.nnodes, 'host')}"
        raise UsageError(what, "ask for fewer nodes")
    if options.name and not NAME.fullmatch(options.name):
        what = f"--name {quoted(options.name)}: not a valid name"
        remedy = (
            "use up to 41 characters (a-z, 0-9, `_`, `.`, `-`), and start with a letter or digit"
        )
        raise UsageError(what, remedy)
    if options.check and (hint := check_command(cluster.job)):
        console.say(hint)
    return Request(cluster, options, new_run_id(options.name))


def plan_without_hosts(request: Request) -> Plan:
    """Return the plan as far as it is known without asking the hosts.

    With --nodes N, it is for the first N hosts.
    """
    hosts = request.cluster.hosts[: request.options.nodes]
    cluster = dataclasses.replace(request.cluster, hosts=hosts)
    return dataclasses.replace(request, cluster=cluster).plan()


def run_with_restarts(request: Request, console: Console) -> Outcome:
    """Run an attempt and the restarts that the job allows, then --on-exit if the run has ended.

    Return how the run ended or how this command left it.
    """
    with (
        ExitHook(request.folder, console) as hook,
        locks_released_at_end(request.folder),
        Interrupts() as interrupts,
    ):
        # by this lock, `kill` sees the launch or resume before its attempt is reserved on the hosts
        request.take_care()
        outcome = run_attempt(request, interrupts, console)
        outcome = restart_until_done(request.folder, request.options, outcome, interrupts, console)
        hook.outcome = outcome
        if outcome.state.is_final and (record := request.folder.load_if_readable(console)):
            report_next(record, console)
    return outcome
