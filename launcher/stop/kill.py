"""The `kill` command's work: which runs, stop them everywhere, say what was seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from launcher.engines.choose import engines_on
from launcher.errors import DdpctlError, UsageError
from launcher.hosts import Cluster, load
from launcher.runs.find import find, look, names_hosts
from launcher.runs.record import FINAL, RunFolder, find_run, timestamp
from launcher.ssh.account import account_name
from launcher.ssh.many import one_per_account
from launcher.ssh.node import Node, connected
from launcher.state import state_home
from launcher.stop.stop import Stopped, stop_run
from launcher.terminal.console import Console

DEFAULT_TIMEOUT = 60  # seconds between SIGTERM and SIGKILL where no record says otherwise


def kill(
    target: str | None, hosts: str | None, console: Console, *, everything: bool, as_json: bool
) -> int:
    """Returns 0 when every host was seen to be clean, else 6."""
    cluster, run_ids = chosen(target, hosts, everything=everything)
    with connected(cluster.hosts) as nodes:
        if not run_ids:
            run_ids = alive_runs(nodes, cluster, everything=everything)
        reports = [kill_run(nodes, cluster, run_id, console) for run_id in run_ids]
    if as_json:
        console.json({"version": 1, "runs": reports})
    elif not reports:
        console.say("no run there: nothing to stop")
    return 0 if all(report["confirmed"] for report in reports) else 6


def hosts_for(target: str | None, hosts: str | None) -> str:
    """The hosts file that a command is about: named, or that of the run it names."""
    if names_hosts(target):
        return target or ""
    return hosts or str(find_run(target).hosts_file)


def chosen(target: str | None, hosts: str | None, *, everything: bool) -> tuple[Cluster, list[str]]:
    """The hosts to go to and, where one run was named, that run."""
    if names_hosts(target):
        return load(target or "", job_files=False), []
    if hosts is None:
        folder = find_run(target)
        return load(folder.hosts_file, job_files=False), [] if everything else [folder.run_id]
    if everything or target is None:
        return load(hosts, job_files=False), []
    return load(hosts, job_files=False), [find(target, hosts).run_id]


def alive_runs(nodes: Sequence[Node], cluster: Cluster, *, everything: bool) -> list[str]:
    """The runs of this user on the hosts that are alive, or, where none is, what is left of them;
    more than one only when all are meant."""
    statuses, failures = look(nodes, cluster)
    mine = [s for s in statuses if s.owner.split("@")[0] == account_name()]
    alive = [s for s in mine if s.alive]
    run_ids = sorted({s.run_id for s in (mine if everything else alive or mine)})
    if failures and not run_ids:
        raise next(iter(failures.values()))
    if len(run_ids) > 1 and not everything:
        raise UsageError(f"several runs there ({', '.join(run_ids)}): name one, or give --all")
    return run_ids


def kill_run(
    nodes: Sequence[Node], cluster: Cluster, run_id: str, console: Console
) -> dict[str, Any]:
    """One run on all hosts at once. What was seen is printed; so is what could not be."""
    folder = RunFolder(state_home() / "runs" / run_id)
    known = (folder.path / "run.json").exists()
    timeout = folder.load().stop_timeout if known else DEFAULT_TIMEOUT
    machines = one_per_account(nodes)
    with console.step(f"stopping {run_id} on {len(machines)} hosts"):
        stopped, failures = stop_run(
            machines,
            {node: engines_on(node, cluster.job.engine) for node in machines},
            run_id,
            timeout,
        )
    for host, seen in stopped.items():
        console.say(f"{host}: {describe(seen)}")
    for host, error in failures.items():
        console.error(f"{host}: the stop was not confirmed: {error}; the next contact finishes it")
    confirmed = not failures and all(seen.clean for seen in stopped.values())
    if known:
        remember_kill(folder, failures, stopped)
    return {
        "run_id": run_id,
        "confirmed": confirmed,
        "hosts": [
            {
                "host": host,
                "stopped": len(seen.found),
                "left": [*(s.handle for s in seen.left), *map(str, seen.processes)],
                "clean": seen.clean,
            }
            for host, seen in stopped.items()
        ],
        "unseen": [{"host": host, "error": str(error)} for host, error in failures.items()],
    }


def describe(seen: Stopped) -> str:
    ended = f"{len(seen.found)} stopped and removed" if seen.found else "nothing of it was there"
    if seen.clean:
        return f"{ended}, nothing left"
    left = [*(status.handle for status in seen.left), *(f"pid {pid}" for pid in seen.processes)]
    return f"{ended}, STILL THERE: {', '.join(left)}"


def remember_kill(
    folder: RunFolder, failures: Mapping[str, DdpctlError], stopped: Mapping[str, Stopped]
) -> None:
    record = folder.load()
    unclean = [host for host, seen in stopped.items() if not seen.clean]
    record.pending_stop = sorted({*failures, *unclean})
    if record.attempts and record.state not in FINAL:
        record.attempt.state, record.attempt.ended = "CANCELLED", timestamp()
    folder.save(record)
