"""Remove every trace of ddpctl from the hosts: list, remove, list again.

The traces are `~/.ddpctl` of the account in the hosts file, and containers with our label that
mount a part of it. Hosts of a live run are left alone. Images stay, because other programs may use
them. Hosts that share one ~/.ddpctl clean it once, and only if no other host may have a live run in
it.
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from rich.filesize import decimal

from ..engines.choose import every_engine
from ..engines.status import NodeStatus
from ..errors import CommandFailed, DockerUnavailable
from ..facts.shared_homes import find_shared_homes
from ..hosts import Cluster
from ..run_id import is_run_id
from ..ssh.many import ask_each, one_per_account, try_each
from ..ssh.node import Node, connected
from ..ssh.script_files import load_script
from ..terminal.console import Console
from ..terminal.host_errors import report_errors, unseen
from ..text import counted, quoted
from .kill import carriers, kill_run

TIMEOUT = 600.0  # seconds; measuring or removing a large folder is slow

LOOK = load_script(__file__, "list_traces.sh")
PART = re.compile(r"(\d{1,15})\t(.+)")
OPEN = re.compile(r"open (\S{1,64}) ([\w.-]{1,255})")

# The folder may be a link to another disk, and hosts may share the link but not the disk. So every
# host empties its folder before any host removes the link.
EMPTY = load_script(__file__, "empty_store.sh")
REMOVE = load_script(__file__, "remove_store.sh")


@dataclass
class Traces:
    host: str
    hostname: str  # the host's own name
    folder: str  # ~/.ddpctl as an absolute path
    parts: dict[str, int] = field(default_factory=dict)  # size in bytes of each part of the folder
    nodes: list[NodeStatus] = field(default_factory=list)  # that use a part of the folder
    living: set[str] = field(default_factory=set)  # ids of live runs
    open: list[tuple[str, str]] = field(default_factory=list)  # (run id, host name), may be running

    @property
    def none(self) -> bool:
        return not self.parts and not self.nodes

    @property
    def runs(self) -> set[str]:
        """The ids of all runs in the folder or on the host."""
        named = {part.split("/", 1)[1] for part in self.parts if part.startswith("runs/")}
        return named | {status.run_id for status in self.nodes}

    @property
    def containers(self) -> list[NodeStatus]:
        return [status for status in self.nodes if not status.handle.startswith("/")]

    def lines(self) -> list[str]:
        return [
            *(f"{self.host}  container  {s.handle}  {s.state}" for s in self.containers),
            *(f"{self.host}  {self.folder}/{p}  {decimal(n)}" for p, n in self.parts.items()),
        ]


def clean(
    cluster: Cluster, console: Console, *, kill: bool, as_json: bool, confirm: Callable[[], bool]
) -> int:
    """Remove all traces. Return 6 if some may be left.

    If nothing was removed, return 4 if a host did not answer. Otherwise return 0.
    confirm: called after the listing; returns whether to remove what it shows.
    """
    with connected(cluster.hosts) as nodes:
        machines = one_per_account(nodes)
        with console.step(f"looking for traces on {counted(len(machines), 'host')}"):
            leaders = [group[0] for group in find_shared_homes(machines)]
            found, failures = ask_each(machines, lambda node: look(node, leaders, cluster))
        kept = {} if kill else alive(found.values())
        to_remove = [t for t in found.values() if not t.none and not t.runs & kept.keys()]
        if not as_json:
            for line in (line for traces in to_remove for line in traces.lines()):
                console.print(line)
            for traces in found.values():
                for run_id in sorted(traces.runs & kept.keys()):
                    console.say(f"{traces.host}: not cleaned: {run_id} {kept[run_id]}")
        removed = bool(to_remove) and confirm()
        left = found
        if removed:
            with console.step(f"removing them from {counted(len(to_remove), 'host')}"):
                end(machines, leaders, cluster, to_remove, console)
                left, failures = ask_each(machines, lambda node: look(node, leaders, cluster))
    report_errors(failures, console)
    unclean = not all(traces.none for traces in left.values())
    if as_json:
        rows = [
            {
                "host": traces.host,
                "containers": [status.handle for status in traces.containers],
                "folder": traces.folder,
                "parts": [{"name": name, "bytes": size} for name, size in traces.parts.items()],
                "alive": sorted(traces.living),
                "clean": host in left and left[host].none,
            }
            for host, traces in found.items()
        ]
        document = {"version": 1, "removed": removed, "hosts": rows, "unseen": unseen(failures)}
        console.json(document)
    elif removed:
        for traces in left.values():
            after = (
                "clean" if traces.none else f"still there: {counted(len(traces.lines()), 'item')}"
            )
            console.say(f"{traces.host}: {after}")
    elif not unclean and not failures:
        console.say("no trace of ddpctl on these hosts")
    if removed:
        return 6 if failures or unclean else 0
    return 4 if failures else 0


def look(node: Node, leaders: Collection[Node], cluster: Cluster) -> Traces:
    """List a host's traces. Only `leaders` look into ~/.ddpctl; other hosts share theirs."""
    output = node.script(LOOK, "parts" if node in leaders else "", timeout=TIMEOUT).stdout
    folder, hostname, *rows = [*output.decode(errors="replace").splitlines(), "", ""]
    if not folder.startswith("/"):
        raise CommandFailed(
            f"cannot find the home folder: {quoted(folder)}",
            "give the account a home folder in that host's /etc/passwd",
            host=node.name,
        )
    traces = Traces(node.name, hostname, folder)
    for row in rows:
        if part := PART.fullmatch(row):
            traces.parts[part[2]] = int(part[1]) * 1024
        elif (attempt := OPEN.fullmatch(row)) and is_run_id(attempt[1]):
            traces.open.append((attempt[1], attempt[2]))
    working = {run_id for _, run_id, _ in carriers(node)} & traces.runs
    for engine in every_engine(node):
        try:
            traces.nodes += engine.using(folder)
        except DockerUnavailable:
            if engine.traits.name == cluster.job.engine:  # the state of its runs is unknown
                raise
    traces.living = working | {status.run_id for status in traces.nodes if status.alive}
    return traces


def alive(found: Collection[Traces]) -> dict[str, str]:
    """Return the runs that keep a host from being cleaned, each with the reason."""
    seen = {traces.hostname for traces in found}
    elsewhere = "may be alive on {}, which was not checked; --kill cleans this host anyway"
    unsure = {
        run: elsewhere.format(host) for t in found for run, host in t.open if host not in seen
    }
    sure = "is still running; stop it with `ddpctl kill`, or clean with --kill"
    return {**unsure, **{run_id: sure for traces in found for run_id in traces.living}}


def end(
    machines: Sequence[Node],
    leaders: Sequence[Node],
    cluster: Cluster,
    to_remove: Sequence[Traces],
    console: Console,
) -> None:
    """Stop the live runs on all hosts, then remove containers and folders."""
    for run_id in sorted(set().union(*(traces.living for traces in to_remove))):
        kill_run(machines, cluster, run_id, console)
    by_host = {traces.host: traces for traces in to_remove}

    def run(node: Node, script: str) -> None:
        done = node.script(script, timeout=TIMEOUT)
        if done.code != 0:
            remedy = "only their owner or root can remove another user's files"
            raise CommandFailed(done.reason, remedy, host=node.name)

    def empty(node: Node) -> None:
        for engine in every_engine(node):
            for status in by_host[node.name].containers if engine.traits.in_container else ():
                engine.remove(status)
        if node in leaders:
            run(node, EMPTY)

    hosts = [node for node in machines if node.name in by_host]
    _, failures = try_each(hosts, empty)
    emptied = [node for node in hosts if node in leaders and node not in failures]
    failures |= try_each(emptied, lambda node: run(node, REMOVE))[1]
    report_errors({node.name: error for node, error in failures.items()}, console)
