"""Stop runs on all their hosts, and report what was left there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..engines.choose import engines_on
from ..errors import DdpctlError, UsageError
from ..hosts import Cluster, fold, load
from ..hosts.fold import names
from ..runs.find import find_id, find_run, list_nodes, names_hosts
from ..runs.record import FINAL, run_folder, timestamp
from ..runs.unseen import unseen
from ..ssh.local import account_name
from ..ssh.many import ask_each, nodes_failed, one_per_account
from ..ssh.node import Node, connected
from ..terminal.console import Console
from .stop import Stopped, not_confirmed, stop_run

STOP_TIMEOUT = 60  # seconds between SIGTERM and SIGKILL for a run without a record


@dataclass(frozen=True)
class Killed:
    run_id: str
    stopped: Mapping[str, Stopped]  # by host
    failures: Mapping[str, DdpctlError]  # by host; the stop is unconfirmed there

    @property
    def unconfirmed(self) -> list[str]:
        unclean = [host for host, result in self.stopped.items() if not result.clean]
        return sorted({*self.failures, *unclean})

    def summary(self) -> str:
        left = [f"{host}: {r.describe()}" for host, r in self.stopped.items() if not r.clean]
        found = [status for result in self.stopped.values() for status in result.found]
        what = "nothing to stop"
        if found:
            alive = any(status.alive or status.waits for status in found)
            what = f"{'stopped' if alive else 'had ended; removed'}, nothing left"
        return f"run {self.run_id}: {'; '.join(left) or f'{what} on {names(self.stopped)}'}"

    def document(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "confirmed": not self.unconfirmed,
            "hosts": [
                {
                    "host": host,
                    "stopped": len(result.found),
                    "left": [*(s.handle for s in result.left), *map(str, result.processes)],
                    "clean": result.clean,
                }
                for host, result in self.stopped.items()
            ],
            "unseen": unseen(self.failures),
        }


def kill(
    target: str | None, hosts: str | None, console: Console, *, everything: bool, as_json: bool
) -> int:
    """Stop runs. Return 0 if every host was seen to be clean, else 6."""
    prefix = None if names_hosts(target) else target
    cluster = load(hosts_for(target, hosts), job_files=False)
    with connected(cluster.hosts) as nodes:
        with console.step(f"asking {len(nodes)} hosts for their runs"):
            if everything or (prefix is None and (target or hosts)):
                run_ids = runs_of_user(nodes, cluster, everything=everything)
            else:
                found = find_id(nodes, cluster, prefix) if hosts else find_run(prefix).run_id
                run_ids = [found]
        killed = [kill_run(nodes, cluster, run_id, console) for run_id in run_ids]
        if everything:
            remove_finished(nodes, cluster, console)
    if as_json:
        console.json({"version": 1, "runs": [run.document() for run in killed]})
    elif not killed:
        console.say(f"no live run of yours on {names(host.name for host in cluster.hosts)}")
    return 6 if any(run.unconfirmed for run in killed) else 0


def hosts_for(target: str | None, hosts: str | None) -> str:
    """Return the hosts file to use: the target itself, `hosts`, or the one of the target's run."""
    if names_hosts(target):
        return target or ""
    return hosts or str(find_run(target).hosts_file)


def runs_of_user(nodes: Sequence[Node], cluster: Cluster, *, everything: bool) -> list[str]:
    """Return this user's live runs on the hosts; of one wanted run, also a finished one.

    Raises UsageError if one run is wanted but several are live.
    """
    statuses, failures = list_nodes(nodes, cluster)
    mine = [s for s in statuses if s.user == account_name()]
    # the launch of a node that was created but not started may have died
    alive = [s for s in mine if s.alive or s.state in ("created", "waiting")]
    run_ids = sorted({s.run_id for s in (alive if everything else alive or mine)})
    if failures and not run_ids:
        raise nodes_failed(failures)
    if len(run_ids) > 1 and not everything:
        raise UsageError(f"several runs there ({', '.join(run_ids)}): name one, or pass --all")
    return run_ids


def remove_finished(nodes: Sequence[Node], cluster: Cluster, console: Console) -> None:
    """Remove the containers of this user's finished runs, but not their folders. Prints the number."""

    def remove(node: Node) -> set[str]:
        removed = set()
        for engine in engines_on(node, cluster.job.engine):
            for status in engine.list():
                mine = status.user == account_name() and engine.traits.in_container
                if mine and status.state in ("exited", "dead"):
                    engine.remove(status)
                    removed.add(status.run_id)
        return removed

    with console.step("removing the containers of finished runs"):
        removed, failures = ask_each(one_per_account(nodes), remove)
    if run_ids := set().union(*removed.values()):
        count = fold.counted(len(run_ids), "finished run")
        console.say(f"removed the containers of {count}; `ddpctl fetch` still finds the files")
    left = "containers of finished runs may be left"
    for line in fold.errors({host: f"{host}: {left}: {e}" for host, e in failures.items()}):
        console.error(line)


def kill_run(nodes: Sequence[Node], cluster: Cluster, run_id: str, console: Console) -> Killed:
    """Stop one run on all hosts concurrently, print a line per host, and record the end."""
    folder = run_folder(run_id)
    record = folder.load_if_readable(console)
    timeout = record.stop_timeout if record else STOP_TIMEOUT
    machines = one_per_account(nodes)
    with console.step(f"stopping {run_id} on {len(machines)} hosts"):
        killed = Killed(run_id, *stop_run(machines, cluster.job.engine, run_id, timeout))
    for host, result in killed.stopped.items():
        if result.found or not result.clean:
            console.detail(f"{host}: {result.describe()}")
    for line in not_confirmed(killed.failures):
        console.error(f"{line}; the next contact finishes it")
    if killed.stopped:
        console.say(killed.summary())
    if record:
        record.pending_stop = killed.unconfirmed
        if record.state not in FINAL:
            record.attempt.state, record.attempt.ended = "CANCELLED", timestamp()
        folder.try_save(record, console)
    return killed
