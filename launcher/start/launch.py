"""The `launch` command."""

from __future__ import annotations

import dataclasses

from ..errors import UsageError
from ..hosts import Cluster
from ..plan.options import LaunchOptions
from ..plan.plan import Plan
from ..run_id import NAME, new_run_id
from ..terminal.console import Console
from . import hooks
from .attempt import NextAttempt
from .check_command import check_command
from .restart import restart_until_done
from .wait import run_attempt


def new_run(cluster: Cluster, options: LaunchOptions) -> NextAttempt:
    """Return the first attempt of a new run. Raises UsageError if the name cannot be in a run id."""
    if options.nodes and options.nodes > cluster.nnodes:
        raise UsageError(
            f"--nodes {options.nodes}: {cluster.source} has {cluster.nnodes} hosts; give fewer"
        )
    if options.name and not NAME.fullmatch(options.name):
        raise UsageError(
            f"--name {options.name!r}: use a-z, 0-9, `_`, `.` and `-`, at most 41 characters, "
            "a letter or digit first"
        )
    return NextAttempt(cluster, options, new_run_id(options.name))


def launch(first: NextAttempt, console: Console) -> int:
    """Launch a new run. Return its exit code as in CONTRACT section 6."""
    if first.options.check and (hint := check_command(first.cluster.job)):
        console.say(hint)
    return run_with_restarts(first, console)


def dry_run(first: NextAttempt) -> Plan:
    """Return the plan that is known without contacting hosts. --nodes takes the first hosts."""
    if first.options.check:
        check_command(first.cluster.job)
    hosts = first.cluster.hosts[: first.options.nodes]
    cluster = dataclasses.replace(first.cluster, hosts=hosts)
    return dataclasses.replace(first, cluster=cluster).plan()


def run_with_restarts(first: NextAttempt, console: Console) -> int:
    """Run an attempt, then the restarts that the job allows. Return the last exit code."""
    with hooks.at_the_end(first.folder, console) as ending:
        ending.code = run_attempt(first, console)
        if not first.options.detach:  # the recorder restarts a detached run
            ending.code = restart_until_done(first.folder, first.options, ending.code, console)
    return ending.code
