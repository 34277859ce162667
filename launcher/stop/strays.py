"""Find leftovers of dead runs ("strays") by label and run id, and list them. With -y, end them.

A run is dead if one of its nodes has ended, or is missing although every host answered. The strays
are its live nodes and those that were created but never started. A process with a run id is a stray
on a host without a live node of that run. Processes without a run id are never touched.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..engines.choose import engines_on
from ..engines.status import ContainerState, NodeStatus
from ..errors import DdpctlError
from ..facts.nvidia import USE, parse_use
from ..hosts import Cluster, load
from ..ssh.local import account_name
from ..ssh.many import ask_each, one_per_account, try_each
from ..ssh.node import Node, connected
from ..ssh.script_files import load_script
from ..terminal.console import Console
from ..terminal.host_errors import report_errors, unseen
from ..text import counted
from .kill import carriers

STOP_TIMEOUT = 10.0  # seconds between SIGTERM and SIGKILL

END = load_script(__file__, "end_process.sh")


@dataclass(frozen=True)
class Stray:
    host: str
    run_id: str
    kind: str  # container or process
    handle: str  # name or pid
    what: str


@dataclass(frozen=True)
class Seen:
    """One host: its nodes of runs, and its processes that carry a run id."""

    statuses: Sequence[NodeStatus]
    carriers: Sequence[tuple[int, str, str]]  # pid, run id, name
    gpu_mib: Mapping[int, int]  # GPU memory by pid


def kill_strays(hosts: str, console: Console, *, yes: bool, as_json: bool) -> int:
    """List the strays; end them if `yes`. Return 6 if a host was silent or `yes` left some, else 0."""
    cluster = load(hosts, job_files=False)
    with connected(cluster.hosts) as nodes:
        machines = one_per_account(nodes)
        with console.step(f"looking for leftovers on {counted(len(machines), 'host')}"):
            found, failures = find(machines, cluster)
        left = found
        if yes and found:
            with console.step(f"ending {counted(len(found), 'leftover')}"):
                end(machines, cluster, found)
                left, failures = find(machines, cluster)
    report_errors(failures, console)
    if as_json:
        console.json(
            {
                "version": 1,
                "found": [vars(stray) for stray in found],
                "ended": yes,
                "left": [vars(stray) for stray in left],
                "unseen": unseen(failures),
            }
        )
    else:
        for stray in left:
            console.print(
                "  ".join((stray.host, stray.kind, stray.handle, stray.run_id, stray.what))
            )
        if not found:
            console.say("no leftovers of dead runs")
        elif not yes:
            count = counted(len(found), "leftover")
            console.say(f"{count}; to end them, run `ddpctl kill HOSTS --strays -y`")
        else:
            console.say(f"{len(found) - len(left)} ended, {len(left)} still there")
    return 6 if failures or (yes and left) else 0


def find(machines: Sequence[Node], cluster: Cluster) -> tuple[list[Stray], dict[str, DdpctlError]]:
    """Return the strays of this user's runs, and the errors of silent hosts."""
    by_host, failures = ask_each(machines, lambda node: look(node, cluster))
    return strays_of(by_host, account_name(), complete=not failures), failures


def look(node: Node, cluster: Cluster) -> Seen:
    engines = engines_on(node, cluster.job.engine)
    statuses = [status for engine in engines for status in engine.list()]
    memory: dict[int, int] = {}
    if node.host.gpus != 0:
        use = node.script(USE, timeout=60.0).stdout.decode(errors="replace")
        memory = {p.pid: p.mib for gpu in parse_use(use) for p in gpu.processes if p.mib}
    return Seen(statuses, carriers(node), memory)


def strays_of(seen: Mapping[str, Seen], user: str, *, complete: bool) -> list[Stray]:
    """Return the strays in `seen`. complete: every host answered, so a missing node is gone."""
    runs: dict[str, list[NodeStatus]] = {}
    for status in (status for host in seen.values() for status in host.statuses):
        runs.setdefault(status.run_id, []).append(status)
    dead = set()
    for run_id, nodes in runs.items():
        missing = len({status.node_rank for status in nodes}) < nodes[0].nnodes
        if (complete and missing) or any(status.has_ended for status in nodes):
            dead.add(run_id)
    others = {s.run_id for nodes in runs.values() for s in nodes if s.user != user}
    found = []
    for name, host in seen.items():
        alive_here = {s.run_id for s in host.statuses if s.alive}
        for status in host.statuses:
            left = status.alive or status.state is ContainerState.CREATED
            if left and status.run_id in dead and status.user == user:
                what = f"{status.state}, node {status.node_rank} of a run that has ended"
                found.append(Stray(name, status.run_id, "container", status.handle, what))
        for pid, run_id, command in host.carriers:
            if run_id not in alive_here | others:
                holds = f", holds {host.gpu_mib[pid]} MiB of a GPU" if pid in host.gpu_mib else ""
                found.append(Stray(name, run_id, "process", str(pid), f"{command}{holds}"))
    return found


def end(machines: Sequence[Node], cluster: Cluster, strays: Sequence[Stray]) -> None:
    def act(node: Node) -> None:
        mine = [stray for stray in strays if stray.host == node.name]
        names = {stray.handle for stray in mine if stray.kind == "container"}
        for engine in engines_on(node, cluster.job.engine):
            for status in engine.list():
                if status.handle in names:
                    engine.stop(status, STOP_TIMEOUT)
                    engine.remove(status)
        for stray in mine:
            if stray.kind == "process":
                node.script(END, stray.handle, stray.run_id)

    try_each(machines, act)  # the caller lists the strays again and sees what is left
