"""Remove every trace of ddpctl from the hosts: list, remove, list again.

The traces are `~/.ddpctl` of the account in the hosts file, and containers with our label that
mount a part of it. Hosts of a live run are left alone. Images stay, because other programs may use
them. Hosts that share one ~/.ddpctl clean it once, and only if no other host may have a live run in
it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..engines.choose import every_engine
from ..engines.status import NodeStatus
from ..errors import CommandFailed, DdpctlError, DockerUnavailable
from ..facts.shared_homes import OWN, find_shared_homes
from ..hosts import Cluster, fold
from ..push.report import format_bytes
from ..run_id import is_run_id
from ..runs.unseen import report_unseen, unseen
from ..ssh.many import ask_each, one_per_account, try_each
from ..ssh.node import Node, connected
from ..terminal.console import Console
from .kill import kill_run
from .strays import carriers

TIMEOUT = 600.0  # seconds; measuring or removing a large folder is slow

# Prints the folder and the host's own name. With $1, also prints the parts of the folder as `KB
# NAME`, and attempts that may be running as `open RUN HOST`.
LOOK = (
    OWN
    + r"""
printf '%s\n' "$(readlink -f "$HOME/.ddpctl")" "$(uname -n)"
[ -n "$1" ] && cd "$HOME/.ddpctl" 2>/dev/null || exit 0
for attempt in $(open_attempts); do
  run=${attempt#runs/}
  printf 'open %s %s\n' "${run%%/*}" "$(cat "$attempt/host")"
done
for part in * .[!.]*; do
  [ -e "$part" ] || [ -L "$part" ] || continue
  if [ "$part" = runs ]; then
    for run in runs/*; do [ -e "$run" ] && du -sk "$run" 2>/dev/null; done
  else
    du -sk "$part" 2>/dev/null
  fi
done
:
"""
)

PART = re.compile(r"(\d{1,15})\t(.+)")
OPEN = re.compile(r"open (\S{1,64}) ([\w.-]{1,255})")

# The folder may be a link to another disk, and hosts may share the link. So each host empties it
# first.
EMPTY = """
cd "$HOME" || exit 1
[ ! -e .ddpctl ] || find -H .ddpctl -mindepth 1 -maxdepth 1 -exec rm -rf {} +
"""
REMOVE = (
    'cd "$HOME" && { rmdir .ddpctl || rm -f .ddpctl; } 2>/dev/null; true'  # unless it is a mount
)


@dataclass(frozen=True)
class Traces:
    host: str
    folder: str  # ~/.ddpctl as an absolute path
    parts: tuple[tuple[str, int], ...]  # (name, bytes) of everything in the folder
    nodes: tuple[NodeStatus, ...]  # containers that mount a part of the folder, and local processes
    living: frozenset[str]  # ids of live runs
    hostname: str = ""  # the host's own name
    open: tuple[tuple[str, str], ...] = ()  # (run id, host name) of attempts that may be running

    @property
    def none(self) -> bool:
        return not self.parts and not self.nodes

    @property
    def runs(self) -> frozenset[str]:
        named = {part.split("/", 1)[1] for part, _ in self.parts if part.startswith("runs/")}
        return frozenset(named | {status.run_id for status in self.nodes})

    @property
    def containers(self) -> list[NodeStatus]:
        return [status for status in self.nodes if not status.handle.startswith("/")]

    def lines(self) -> list[str]:
        return [
            *(f"{self.host}  container  {s.handle}  {s.state}" for s in self.containers),
            *(f"{self.host}  {self.folder}/{p}  {format_bytes(n)}" for p, n in self.parts),
        ]


def clean(
    cluster: Cluster,
    console: Console,
    *,
    kill: bool,
    as_json: bool,
    confirm: Callable[[], bool | None],
) -> int:
    """Remove all traces. Return 0 if every host is clean or nothing had to be done, else 6.

    confirm: called after the listing; None means "only list".
    """
    with connected(cluster.hosts) as nodes:
        machines = one_per_account(nodes)
        with console.step(f"looking for traces on {len(machines)} hosts"):
            leaders = [group[0] for group in find_shared_homes(machines)]
            found, failures = ask_each(machines, lambda node: look(node, leaders, cluster))
        kept = {} if kill else alive(found.values())
        to_remove = [t for t in found.values() if not t.none and not t.runs & kept.keys()]
        if not as_json:
            listed(found.values(), to_remove, kept, console)
        removed = bool(to_remove and confirm())
        left = found
        if removed:
            with console.step(f"removing them from {len(to_remove)} hosts"):
                end(machines, leaders, cluster, to_remove, console)
                left, failures = ask_each(machines, lambda node: look(node, leaders, cluster))
    report_unseen(failures, console)
    unclean = not all(traces.none for traces in left.values())
    if as_json:
        console.json(document(found, left, failures, removed=removed))
    elif removed:
        for traces in left.values():
            after = "clean" if traces.none else f"{len(traces.lines())} items are still there"
            console.say(f"{traces.host}: {after}")
    elif not unclean and not failures:
        console.say("no trace of ddpctl on these hosts")
    if removed:
        return 6 if failures or unclean else 0
    return 4 if failures else 0


def look(node: Node, leaders: Collection[Node], cluster: Cluster) -> Traces:
    """List a host's traces. Only `leaders` look into ~/.ddpctl; other hosts share theirs."""
    leads = node in leaders
    output = node.script(LOOK, "parts" if leads else "", timeout=TIMEOUT).stdout
    folder, hostname, *rows = [*output.decode(errors="replace").splitlines(), "", ""]
    if not folder.startswith("/"):
        raise CommandFailed(f"{node.name}: cannot find the home folder: {folder!r}")
    attempts = [match for row in rows if (match := OPEN.fullmatch(row)) and is_run_id(match[1])]
    found = [match for row in rows if (match := PART.fullmatch(row))]
    parts = [(match[2], int(match[1]) * 1024) for match in found]
    nodes: list[NodeStatus] = []
    for engine in every_engine(node):
        try:
            nodes += engine.using(folder)
        except DockerUnavailable:
            if engine.traits.name == cluster.job.engine:  # the state of its runs is unknown
                raise
    known = {part.split("/", 1)[1] for part, _ in parts if part.startswith("runs/")}
    working = {run_id for _, run_id, _ in carriers(node)} & known
    running = {s.run_id for s in nodes if s.alive and is_run_id(s.run_id)}
    return Traces(
        host=node.name,
        folder=folder,
        parts=tuple(parts),
        nodes=tuple(nodes),
        living=frozenset(running | working),
        hostname=hostname,
        open=tuple((match[1], match[2]) for match in attempts),
    )


def alive(found: Collection[Traces]) -> dict[str, str]:
    """Return the live runs, each with "" or the unseen host on which it may run."""
    seen = {traces.hostname for traces in found}
    elsewhere = {run: host for traces in found for run, host in traces.open if host not in seen}
    return {**elsewhere, **{run_id: "" for traces in found for run_id in traces.living}}


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

    def act(node: Node) -> None:
        for engine in every_engine(node):
            for status in by_host[node.name].containers if engine.traits.in_container else ():
                engine.remove(status)
        if node in leaders:
            _remove(node, EMPTY)

    hosts = [node for node in machines if node.name in by_host]
    _, failures = try_each(hosts, act)
    emptied = [node for node in hosts if node in leaders and node not in failures]
    failures |= try_each(emptied, lambda node: _remove(node, REMOVE))[1]
    for line in fold.errors({node.name: error for node, error in failures.items()}):
        console.error(line)


def _remove(node: Node, script: str) -> None:
    done = node.script(script, timeout=TIMEOUT)
    if done.code != 0:
        raise CommandFailed(
            f"{node.name}: {done.reason}; only that user or root can remove another user's files"
        )


def listed(
    found: Iterable[Traces], to_remove: Sequence[Traces], kept: Mapping[str, str], console: Console
) -> None:
    for traces in to_remove:
        for line in traces.lines():
            console.print(line)
    for traces in found:
        for run_id in sorted(traces.runs & kept.keys()):
            why = "is still running; stop it with `ddpctl kill`, or clean with --kill"
            if kept[run_id]:
                why = f"may be alive on {kept[run_id]}, which was not checked; --kill removes it"
            console.say(f"{traces.host}: not cleaned: {run_id} {why}")


def document(
    found: Mapping[str, Traces],
    left: Mapping[str, Traces],
    failures: Mapping[str, DdpctlError],
    *,
    removed: bool,
) -> dict[str, Any]:
    """Return the document of `clean --json`, version 1."""
    rows = [
        {
            "host": traces.host,
            "containers": [status.handle for status in traces.containers],
            "folder": traces.folder,
            "parts": [{"name": name, "bytes": size} for name, size in traces.parts],
            "alive": sorted(traces.living),
            "clean": host in left and left[host].none,
        }
        for host, traces in found.items()
    ]
    return {"version": 1, "removed": removed, "hosts": rows, "unseen": unseen(failures)}
