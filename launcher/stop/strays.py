"""Find leftovers of dead runs ("strays") by label and run id, and list them. With -y, end them.

A run is dead if all hosts answered and one of its nodes is missing or has ended without success: after a
success, the others may still save the last checkpoint. Its strays are its live nodes, and nodes that
were created but never started. Young nodes are not strays: hosts answer at different moments, so a
launch may have created the missing node since. A process with a run id is a stray if its host has no
live node of that run. Processes without a run id are never touched.

A host can report anything about runs that are not its own. So an ended node proves nothing if
another host has a node of the same rank, and only the stray's own host determines how many nodes a
run has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..engines.choose import engines_on, nodes_on
from ..engines.status import LEASE, ContainerState, NodeStatus
from ..errors import DdpctlError
from ..facts.nvidia import USE, parse_use
from ..hosts import Cluster
from ..outcomes import Exit
from ..runs.find import unique_match
from ..ssh.host_connection import HostConnection, connected
from ..ssh.local import account_name
from ..ssh.many import ask_each, one_per_account, try_each, unique_names
from ..ssh.script_files import load_script
from ..terminal.console import Console
from ..terminal.host_errors import report_errors, unseen
from ..text import counted, names, quoted
from .inventory import RunProcess, take_inventory

END = load_script(__file__, "end_process.sh")
STRAY_TIMEOUT = 10.0  # seconds between SIGTERM and SIGKILL


@dataclass(frozen=True)
class Stray:
    host: str
    run_id: str
    kind: str  # container, node (without a container) or process
    handle: str  # its name or pid
    what: str  # a description


@dataclass(frozen=True)
class RunTraces:
    """One host's report: nodes of runs, processes with a run id, and their GPU memory."""

    statuses: Sequence[NodeStatus]
    processes: Sequence[RunProcess]
    gpu_mib: Mapping[int, int]  # GPU memory in use, by pid

    def has(self, stray: Stray) -> bool:
        """Return whether the stray, which was on this host, is still on it."""
        if stray.kind == "process":
            return any(
                (str(p.pid), p.run_id) == (stray.handle, stray.run_id) for p in self.processes
            )
        return any(s.handle == stray.handle and is_left_behind(s) for s in self.statuses)


def kill_strays(
    cluster: Cluster, run: str | None, console: Console, *, yes: bool, as_json: bool
) -> Exit:
    """List the strays, and end them if `yes`.

    run: list only strays of the run whose id starts with this text. Return UNCONFIRMED if a host did not
    answer or strays are left after `yes`; otherwise DONE.
    """
    with connected(cluster.hosts) as connections:
        machines = one_per_account(connections)
        with console.step(f"looking for leftovers on {counted(len(machines), 'host')}"):
            strays, failures = find_strays(machines, cluster, run)
        remaining = strays
        if yes and strays:
            with console.step(f"ending {counted(len(strays), 'leftover')}"):
                end_strays(machines, cluster, strays)
                traces, failures = traces_by_host(machines, cluster)
                remaining = [s for s in strays if s.host not in traces or traces[s.host].has(s)]
    report_errors(failures, console)
    if as_json:
        console.json(
            {
                "version": 1,
                "found": [vars(stray) for stray in strays],
                "ended": yes,
                "left": [vars(stray) for stray in remaining],
                "unseen": unseen(failures),
            }
        )
    else:
        for s in remaining:
            console.print("  ".join((s.host, s.kind, s.handle, s.run_id, s.what)))
        if strays:
            console.say(summary(strays, remaining, yes=yes))
        elif answered := [each.name for each in machines if each.name not in failures]:
            whose = quoted(run) if run else "dead runs"
            console.say(f"no leftovers of {whose} on {names(answered)}")
    return Exit.UNCONFIRMED if failures or (yes and remaining) else Exit.DONE


def summary(strays: Sequence[Stray], remaining: Sequence[Stray], *, yes: bool) -> str:
    count = counted(len(strays), "leftover")
    if yes:
        return f"ended {len(strays) - len(remaining)} of {count}"
    return f"{count}; repeat the command with -y to end what is left"


def find_strays(
    machines: Sequence[HostConnection], cluster: Cluster, run: str | None
) -> tuple[list[Stray], dict[str, DdpctlError]]:
    """Return the strays of this user's runs, and the errors of hosts that did not answer.

    run: return only strays of the run with this id or unique prefix. Raises UsageError if several match.
    """
    by_host, failures = traces_by_host(machines, cluster)
    strays = strays_of(by_host, account_name(), complete=not failures)
    if run is not None:
        run_id = unique_match(run, sorted({stray.run_id for stray in strays}))
        strays = [stray for stray in strays if stray.run_id == run_id]
    return strays, failures


def traces_by_host(
    machines: Sequence[HostConnection], cluster: Cluster
) -> tuple[dict[str, RunTraces], dict[str, DdpctlError]]:
    return ask_each(machines, lambda connection: run_traces(connection, cluster))


def run_traces(connection: HostConnection, cluster: Cluster) -> RunTraces:
    memory: dict[int, int] = {}
    if connection.host.gpus != 0:
        use = connection.script(USE, timeout=60.0).stdout.decode(errors="replace")
        memory = {p.pid: p.mib for gpu in parse_use(use) for p in gpu.processes if p.mib}
    processes = take_inventory(connection, folder=False).processes
    return RunTraces(nodes_on(connection, cluster.job.engine), processes, memory)


def strays_of(hosts: Mapping[str, RunTraces], user: str, *, complete: bool) -> list[Stray]:
    """Return the user's strays. hosts: traces by host name. complete: whether all hosts answered."""
    runs: dict[str, dict[int, list[NodeStatus]]] = {}  # by run and node rank
    for status in (status for host in hosts.values() for status in host.statuses):
        runs.setdefault(status.run_id, {}).setdefault(status.node_rank, []).append(status)

    def is_dead(run_id: str, nnodes: int) -> bool:
        ranks = runs[run_id]
        nodes_of_rank = [ranks[rank] for rank in ranks if rank < nnodes]
        single = [nodes[0] for nodes in nodes_of_rank if len(nodes) == 1]
        ended = any(node.has_ended and node.exit_code != 0 for node in single)
        return complete and (ended or len(nodes_of_rank) < nnodes)

    others = {s.run_id for host in hosts.values() for s in host.statuses if s.user != user}
    strays = []
    for name, host in hosts.items():
        alive_here = {s.run_id for s in host.statuses if s.alive}
        for status in host.statuses:
            young = 0 < status.age <= LEASE  # 0: unknown
            own = is_left_behind(status) and status.user == user
            if own and not young and is_dead(status.run_id, status.nnodes):
                what = f"{status.state}, node {status.node_rank} of a run that has ended"
                kind = "node" if status.is_process else "container"
                strays.append(Stray(name, status.run_id, kind, status.handle, what))
        for process in host.processes:
            if process.run_id not in alive_here | others:
                mib = host.gpu_mib.get(process.pid)
                what = process.name + (f", uses {mib} MiB of GPU memory" if mib else "")
                strays.append(Stray(name, process.run_id, "process", str(process.pid), what))
    return strays


def is_left_behind(status: NodeStatus) -> bool:
    return status.alive or status.state is ContainerState.CREATED


def end_strays(
    machines: Sequence[HostConnection], cluster: Cluster, strays: Sequence[Stray]
) -> None:
    hosts = unique_names(machines)

    def end(connection: HostConnection) -> None:
        own = [stray for stray in strays if stray.host == hosts[connection]]
        handles = {stray.handle for stray in own if stray.kind != "process"}
        for engine in engines_on(connection, cluster.job.engine) if handles else ():
            for status in engine.nodes():
                if status.handle in handles and status.user == account_name():
                    engine.stop(status, STRAY_TIMEOUT)
                    engine.remove(status)
        for stray in own:
            if stray.kind == "process":
                connection.script(END, stray.handle, stray.run_id)

    try_each(machines, end)  # the caller looks again and sees what is left
