"""The `resume` command's work: the next attempt of a run, on the same hosts or on others."""

from __future__ import annotations

import dataclasses

from launcher.errors import UsageError
from launcher.hosts import Cluster, Host, Job, load
from launcher.launch import exit_hook
from launcher.launch.launch import Wishes, run_attempt, with_restarts
from launcher.runs.find import find, list_nodes, names_hosts
from launcher.runs.record import RunFolder, find_run
from launcher.ssh.node import Node
from launcher.terminal.console import Console


def resume(
    target: str | None,
    hosts: str | None,
    console: Console,
    *,
    detach: bool,
    on_exit: str | None = None,
) -> int:
    """Returns the new attempt's exit code. A run that is still alive is refused."""
    folder = run_of(target, hosts, console)
    record = folder.load()
    before = load(folder.hosts_file, job_files=hosts is None)
    cluster = before if hosts is None else on_other_hosts(before, load(hosts))
    former = [host for host in before.hosts if host not in cluster.hosts]
    refuse_if_alive([*cluster.hosts, *former], cluster, folder.run_id)
    wishes = Wishes(detach=detach, hang_timeout=record.hang_timeout, on_exit=on_exit, by="resume")
    with exit_hook.at_the_end(folder, console) as ending:
        ending.code = run_attempt(cluster, wishes, console, folder.run_id, record, former)
        if not detach:  # or else the recorder sees to restarts
            cluster = load(folder.hosts_file, job_files=False)
            ending.code = with_restarts(cluster, wishes, console, folder.run_id, ending.code)
    return ending.code


def run_of(target: str | None, hosts: str | None, console: Console) -> RunFolder:
    """The run to resume: this machine's own, or one that only the hosts know."""
    if names_hosts(target) or hosts is None:
        return find(target, None, console)
    try:
        return find_run(target)
    except UsageError:
        return find(target, hosts, console)


def on_other_hosts(before: Cluster, now: Cluster) -> Cluster:
    """The hosts of `now`, and the run's own job but for what the file says of it. What is run stays
    what it was in any case: another command would be another run."""
    said = {
        field.name: getattr(now.job, field.name)
        for field in dataclasses.fields(Job)
        if getattr(now.job, field.name) != getattr(Job(), field.name)
    }
    job = dataclasses.replace(before.job, **{**said, "command": before.job.command})
    return dataclasses.replace(now, job=job)


def refuse_if_alive(hosts: list[Host], cluster: Cluster, run_id: str) -> None:
    nodes = [Node(host) for host in hosts]
    try:
        statuses, _ = list_nodes(nodes, cluster, run_id)
    finally:
        for node in nodes:
            node.close()
    if alive := sorted({status.host for status in statuses if status.alive}):
        raise UsageError(
            f"{run_id} still runs on {', '.join(alive)}: `ddpctl attach` follows it, "
            "`ddpctl kill` ends it"
        )
