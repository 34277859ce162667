"""The `launch` command's work."""

from __future__ import annotations

import dataclasses

from ..errors import UsageError
from ..hosts import Cluster
from ..plan.options import LaunchOptions
from ..plan.plan import Plan
from ..run_id import new_run_id
from ..terminal.console import Console
from . import exit_hook
from .attempt import NextAttempt
from .check_command import check_command
from .restart import restart_until_done
from .wait import run_attempt


def launch(cluster: Cluster, options: LaunchOptions, console: Console) -> int:
    """Launches a new run; returns its exit code as in CONTRACT section 6."""
    check_nodes(cluster, options)
    if options.check and (hint := check_command(cluster.job)):
        console.say(hint)
    return run_with_restarts(NextAttempt(cluster, options, new_run_id(options.name)), console)


def dry_run(cluster: Cluster, options: LaunchOptions) -> Plan:
    """The plan as far as it is known without contacting a host; with --nodes, on the first hosts."""
    check_nodes(cluster, options)
    if options.check:
        check_command(cluster.job)
    cluster = dataclasses.replace(cluster, hosts=cluster.hosts[: options.nodes])
    return NextAttempt(cluster, options, new_run_id(options.name)).plan()


def check_nodes(cluster: Cluster, options: LaunchOptions) -> None:
    if options.nodes and options.nodes > cluster.nnodes:
        raise UsageError(
            f"--nodes {options.nodes}: {cluster.source} has {cluster.nnodes} hosts; give fewer"
        )


def run_with_restarts(first: NextAttempt, console: Console) -> int:
    """Runs an attempt, then the restarts that the job allows; returns the last exit code."""
    with exit_hook.at_the_end(first.folder, console) as ending:
        ending.code = run_attempt(first, console)
        if not first.options.detach:  # the recorder restarts a detached run
            code = restart_until_done(first.folder, first.options, ending.code, console)
            ending.code = code
    return ending.code
