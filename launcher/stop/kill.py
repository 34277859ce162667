"""Stop runs on all their hosts and prove it: mark, SIGTERM, wait, SIGKILL, inspect."""

import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from ..engines.choose import engines_on
from ..engines.status import UNSTARTED, NodeStatus
from ..errors import CommandFailed, DdpctlError, NodesFailed, UsageError
from ..hosts import Cluster, load
from ..outcomes import Exit, RunState
from ..run_id import is_run_id
from ..runs.find import find_id, find_run, list_nodes, names_hosts
from ..runs.record import UnreadableRecord, run_folder, run_folders, timestamp
from ..ssh.local import account_name
from ..ssh.many import ask_each, one_per_account
from ..ssh.node import Node, connected
from ..ssh.script_files import load_script
from ..terminal.console import Console
from ..terminal.host_errors import report_errors, report_unconfirmed, unseen
from ..text import counted, names

STOP_TIMEOUT = 60  # seconds between SIGTERM and SIGKILL for a run without a record
MARK_CANCELLED = load_script(__file__, "mark_cancelled.sh")
CARRIERS = load_script(__file__, "list_processes.sh")
CARRIER = re.compile(r"([1-9][0-9]{0,8}) (\S+) (.*)")

ORPHAN_TIMEOUT = 5.0  # seconds for a killed supervisor's processes to end
POLL = 0.3  # seconds


@dataclass(frozen=True)
class Stopped:
    """What a stop found on one host, and what is left."""

    found: Sequence[NodeStatus]
    left: Sequence[str]  # nodes, and pids of processes with the run id

    @property
    def clean(self) -> bool:
        return not self.left

    def describe(self) -> str:
        count = len(self.found)
        stopped = f"stopped and removed {counted(count, 'node')}" if count else "was not running"
        if self.clean:
            return f"{stopped}, nothing left" if count else stopped
        return f"{stopped}, STILL THERE: {', '.join(self.left)}"


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
                    "left": [each.removeprefix("pid ") for each in result.left],
                    "clean": result.clean,
                }
                for host, result in self.stopped.items()
            ],
            "unseen": unseen(self.failures),
        }


def kill(
    target: str | None, hosts: str | None, console: Console, *, everything: bool, as_json: bool
) -> Exit:
    """Stop runs. Return 0 if every host was seen to be clean, else 6."""
    prefix = None if names_hosts(target) else target
    cluster = load(hosts_for(target, hosts), job_files=False)
    with connected(cluster.hosts) as nodes:
        with console.step(f"asking {counted(len(nodes), 'host')} for their runs"):
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
        console.say(f"you have no live run on {names(host.name for host in cluster.hosts)}")
    return Exit.UNCONFIRMED if any(run.unconfirmed for run in killed) else Exit.DONE


def hosts_for(target: str | None, hosts: str | None) -> str:
    """Return the hosts file to use: the target itself, `hosts`, or the one of the target's run."""
    if names_hosts(target):
        return target or ""
    return hosts or str(find_run(target).hosts_file)


def runs_of_user(nodes: Sequence[Node], cluster: Cluster, *, everything: bool) -> list[str]:
    """Return the ids of this user's live runs on the hosts.

    If not `everything`, return at most one id, of a finished run if none is live.
    Raises UsageError if there are several.
    """
    statuses, failures = list_nodes(nodes, cluster)
    mine = [s for s in statuses if s.user == account_name()]
    # the launch of a node that was created but not started may have died
    alive = [s for s in mine if s.alive or s.state in UNSTARTED]
    run_ids = sorted({s.run_id for s in (alive if everything else alive or mine)})
    if failures and not run_ids:
        raise NodesFailed(failures)
    if len(run_ids) > 1 and not everything:
        raise UsageError(
            f"several runs on these hosts: {', '.join(run_ids)}", "name one of them, or pass --all"
        )
    return run_ids


def remove_finished(nodes: Sequence[Node], cluster: Cluster, console: Console) -> None:
    """Remove the containers of this user's finished runs, but not their folders. Prints how many."""

    def remove(node: Node) -> set[str]:
        removed = set()
        for engine in engines_on(node, cluster.job.engine):
            for status in engine.list():
                mine = status.user == account_name() and engine.traits.in_container
                if mine and status.has_ended:
                    engine.remove(status)
                    removed.add(status.run_id)
        return removed

    with console.step("removing the containers of finished runs"):
        removed, failures = ask_each(one_per_account(nodes), remove)
    if run_ids := set().union(*removed.values()):
        count = counted(len(run_ids), "finished run")
        console.say(f"removed the containers of {count}; `ddpctl fetch` still finds the files")
    left = "containers of finished runs may be left"
    report_errors({host: error.prefixed(left) for host, error in failures.items()}, console)


def finish_pending(nodes: Sequence[Node], cluster: Cluster, console: Console) -> None:
    """Complete stops that run.json lists as unconfirmed on these hosts."""
    for folder in run_folders():
        try:
            pending = folder.load().pending_stop
        except UnreadableRecord:
            continue  # the command that needs this record reports it
        if here := [node for node in nodes if node.name in pending]:
            kill_run(here, cluster, folder.run_id, console, everywhere=False)


def kill_run(
    nodes: Sequence[Node],
    cluster: Cluster,
    run_id: str,
    console: Console,
    *,
    everywhere: bool = True,
) -> Killed:
    """Stop one run on the hosts concurrently, print a line per host, and record the end.

    everywhere: these are all of its hosts. Otherwise it may have been resumed on others.
    """
    folder = run_folder(run_id)
    record = folder.load_if_readable(console)
    timeout = record.stop_timeout if record else STOP_TIMEOUT
    machines = one_per_account(nodes)
    with console.step(f"stopping {run_id} on {names(node.name for node in machines)}"):
        killed = Killed(run_id, *stop_run(machines, cluster.job.engine, run_id, timeout))
    for host, result in killed.stopped.items():
        if result.found or not result.clean:
            console.detail(f"{host}: {result.describe()}")
    if everywhere:  # otherwise the command itself reports silent hosts
        report_unconfirmed(killed.failures, console)
    if killed.stopped:
        console.say(killed.summary())
    if record:
        elsewhere = set(record.pending_stop) - {node.name for node in nodes}
        record.pending_stop = sorted({*killed.unconfirmed, *elsewhere})
        unknown = record.state is RunState.UNKNOWN and not record.pending_stop
        if (everywhere and not record.state.is_final) or unknown:
            record.attempt.state, record.attempt.ended = RunState.CANCELLED, timestamp()
        folder.try_save(record, console)
    return killed


def stop_run(
    nodes: Sequence[Node],
    engine: str,
    run_id: str,
    timeout: float,
    *,
    remove: bool = True,
    cancel: bool = True,
) -> tuple[dict[str, Stopped], dict[str, DdpctlError]]:
    """Stop the run on every host. Return the result by host, and the errors of silent hosts.

    engine: the job's. timeout: seconds between SIGTERM and SIGKILL. remove: also remove the
    containers. cancel: record a cancellation instead of a failure.
    """

    def stop(node: Node) -> Stopped:
        if cancel and (done := node.script(MARK_CANCELLED, run_id)).code != 0:
            raise CommandFailed(
                f"could not mark {run_id} as cancelled: {done.reason}",
                "look at `df -h` and the permissions of ~/.ddpctl there",
                host=node.name,
            )
        found: list[NodeStatus] = []
        left: list[str] = []
        for each in engines_on(node, engine):
            statuses = each.list(run_id)
            # concurrently, so that nodes on one machine do not wait for each other's timeout
            with ThreadPoolExecutor(len(statuses) or 1) as pool:
                list(pool.map(each.stop, statuses, repeat(timeout)))
            for status in statuses if remove else ():
                each.remove(status)
            found += statuses
            left += [status.handle for status in each.list(run_id) if status.alive or remove]
        deadline = time.monotonic() + ORPHAN_TIMEOUT
        while (processes := carriers(node, run_id)) and time.monotonic() < deadline:
            time.sleep(POLL)
        return Stopped(found, [*left, *(f"pid {pid}" for pid, _, _ in processes)])

    return ask_each(nodes, stop)


def carriers(node: Node, run_id: str = "") -> list[tuple[int, str, str]]:
    """Return pid, run id and name of each process that carries this run id, or any if it is ""."""
    output = node.script(CARRIERS, run_id).stdout.decode(errors="replace")
    rows = [match for line in output.splitlines() if (match := CARRIER.fullmatch(line))]
    found = [(int(row[1]), row[2], row[3]) for row in rows if is_run_id(row[2])]
    return [row for row in found if run_id in ("", row[1])]
