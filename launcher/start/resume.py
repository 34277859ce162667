"""The `resume` command: start the next attempt of a run, on the same hosts or on others."""

import contextlib
import dataclasses
import shlex

from ..errors import UsageError
from ..hosts import Cluster, Job, load, user_environment
from ..outcomes import Outcome, RunState
from ..plan.plan import LaunchOptions
from ..runs.find import find, find_run, list_nodes, names_hosts
from ..runs.record import RunFolder
from ..ssh.node import connected
from ..terminal.console import Console
from ..text import counted
from .launch import run_to_the_end
from .request import Request


def resume(
    target: str | None,
    hosts: str | None,
    console: Console,
    *,
    detach: bool,
    on_exit: str | None = None,
    on_event: str | None = None,
    force: bool = False,
) -> Outcome:
    """Resume a run. Refuses a live run and, without force, a successful one."""
    folder: RunFolder | None = None
    if hosts is not None and not names_hosts(target):
        with contextlib.suppress(UsageError):  # then only the hosts may know it
            folder = find_run(target)
    folder = folder or find(target, hosts, console)
    run_id, record = folder.run_id, folder.load()
    if record.state is RunState.SUCCEEDED and not force:
        raise UsageError(
            f"{run_id} has already succeeded: `ddpctl resume {run_id} --force` starts another "
            "attempt anyway"
        )
    before = folder.kept_cluster(job_files=hosts is None)
    if record.adopted:  # hosts do not report a run's command
        file = target if names_hosts(target) else hosts
        if file is None:
            raise UsageError(
                f"{run_id} was started on another machine, so its command is not known here: "
                f"`ddpctl resume {run_id} --hosts HOSTS` runs the command in your hosts file"
            )
        cluster = load(file)
        command = shlex.join(cluster.job.command)
        console.say(f"{run_id} resumes with the command of {file}: {command}")
    else:
        cluster = before if hosts is None else on_other_hosts(before, load(hosts))
    former = tuple(host for host in before.hosts if host not in cluster.hosts)
    if unknown := set(record.env_names) - set(user_environment(cluster.job)):
        raise UsageError(
            f"{run_id}: this machine does not know the values of {', '.join(sorted(unknown))}; "
            "set them under job.env in a hosts file, and pass it with --hosts"
        )
    asked = (*cluster.hosts, *former)
    with (
        connected(asked) as nodes,
        console.step(f"asking {counted(len(asked), 'host')} for the run"),
    ):
        statuses, _ = list_nodes(nodes, cluster, run_id)
    if alive := sorted({status.host for status in statuses if status.alive or status.waits}):
        raise UsageError(
            f"{run_id} is still running or waiting on {', '.join(alive)}: `ddpctl attach` follows "
            "it, `ddpctl kill` ends it"
        )
    kept = {**dataclasses.asdict(record.options), "push": True, "check": True}
    if hosts is not None:
        kept["nodes"] = None  # use all hosts of the new file
    options = LaunchOptions(**kept, detach=detach, on_exit=on_exit, on_event=on_event, by="resume")
    number = record.attempt.attempt + 1
    return run_to_the_end(Request(cluster, options, run_id, record, number, former), console)


def on_other_hosts(before: Cluster, now: Cluster) -> Cluster:
    """Return the hosts of `now` with the job of `before`, overridden by that of `now`.

    Only values other than the default override. The run keeps its command, because another command
    would be another run.
    """
    given = {
        field.name: getattr(now.job, field.name)
        for field in dataclasses.fields(Job)
        if getattr(now.job, field.name) != getattr(Job(), field.name)
    }
    job = dataclasses.replace(before.job, **{**given, "command": before.job.command})
    return dataclasses.replace(now, job=job)
