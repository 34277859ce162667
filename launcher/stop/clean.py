"""Removes every trace of ddpctl from the hosts: lists, removes, lists again.

The traces are `~/.ddpctl` of the account that the hosts file names, and containers with our label
that mount a part of it. Hosts of a live run are left alone. Images stay: other things may use them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..engines.choose import every_engine
from ..engines.status import NodeStatus
from ..errors import CommandFailed, DdpctlError, DockerUnavailable
from ..hosts import Cluster, load
from ..push.report import format_bytes
from ..run_id import is_run_id
from ..runs.unseen import report_unseen, unseen
from ..ssh.many import ask_each, one_per_account, try_each
from ..ssh.node import Node, connected
from ..terminal.console import Console
from .kill import kill_run
from .strays import carriers

TIMEOUT = 600.0  # seconds; measuring or removing a large folder takes long

# The folder, then its parts as `KB NAME`; no parts where there is no folder.
LOOK = r"""
printf '%s\n' "$HOME/.ddpctl"
cd "$HOME/.ddpctl" 2>/dev/null || exit 0
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

PART = re.compile(r"(\d{1,15})\t(.+)")

# Where the folder is a link to another disk, its target is emptied.
REMOVE = r"""
cd "$HOME" || exit 1
[ -e .ddpctl ] || [ -L .ddpctl ] || exit 0
if [ -L .ddpctl ]; then
  find -H .ddpctl -mindepth 1 -maxdepth 1 -exec rm -rf {} + && rm -f .ddpctl
else
  rm -rf .ddpctl
fi
"""


@dataclass(frozen=True)
class Traces:
    """What one host has."""

    host: str
    folder: str  # ~/.ddpctl, absolute
    parts: tuple[tuple[str, int], ...]  # below it, with bytes
    nodes: tuple[NodeStatus, ...]  # containers that mount something of it, and local processes
    living: frozenset[str]  # run ids

    @property
    def none(self) -> bool:
        return not self.parts and not self.nodes

    @property
    def runs(self) -> frozenset[str]:
        named = {part.split("/", 1)[1] for part, _ in self.parts if part.startswith("runs/")}
        return frozenset(named | {status.run_id for status in self.nodes})

    def lines(self) -> list[str]:
        containers = [
            f"{self.host}  container  {s.handle}  {s.state}"
            for s in self.nodes
            if not s.handle.startswith("/")
        ]
        folders = [
            f"{self.host}  {self.folder}/{p}  {format_bytes(size)}" for p, size in self.parts
        ]
        return containers + folders


def clean(
    hosts: str, console: Console, *, kill: bool, as_json: bool, sure: Callable[[], bool | None]
) -> int:
    """Returns 0 when every host is clean or nothing had to be done, 6 when something is left.

    sure: called once everything is listed; its None means "only list".
    """
    cluster = load(hosts, job_files=False)
    with connected(cluster.hosts) as nodes:
        machines = one_per_account(nodes)
        with console.step(f"looking for traces on {len(machines)} hosts"):
            found, failures = look(machines, cluster)
        kept = set() if kill else living(found)
        to_go = [traces for traces in found if not traces.none and not traces.runs & kept]
        if not as_json:
            listed(found, to_go, kept, console)
        answer = sure() if to_go else None
        left = found
        if answer:
            with console.step(f"removing them from {len(to_go)} hosts"):
                end(machines, cluster, to_go, console)
                left, failures = look(machines, cluster)
    return report(found, left, failures, console, removed=bool(answer), as_json=as_json)


def look(machines: Sequence[Node], cluster: Cluster) -> tuple[list[Traces], dict[str, DdpctlError]]:
    found, failures = ask_each(machines, lambda node: _look(node, cluster))
    return list(found.values()), failures


def _look(node: Node, cluster: Cluster) -> Traces:
    output = node.script(LOOK, timeout=TIMEOUT).stdout.decode(errors="replace")
    folder, *rows = output.splitlines() or [""]
    if not folder.startswith("/"):
        raise CommandFailed(f"{node.name}: cannot find the home folder: {folder!r}")
    found = [match for row in rows if (match := PART.fullmatch(row))]
    parts = [(match[2], int(match[1]) * 1024) for match in found]
    nodes: list[NodeStatus] = []
    for engine in every_engine(node):
        try:
            nodes += engine.using(folder)
        except DockerUnavailable:
            if engine.traits.name == cluster.job.engine:  # its runs there cannot be known
                raise
    known = {part.split("/", 1)[1] for part, _ in parts if part.startswith("runs/")}
    working = {run_id for _, run_id, _ in carriers(node)} & known
    alive = {s.run_id for s in nodes if s.alive and is_run_id(s.run_id)}
    return Traces(node.name, folder, tuple(parts), tuple(nodes), frozenset(alive | working))


def living(found: Sequence[Traces]) -> set[str]:
    return {run_id for traces in found for run_id in traces.living}


def end(
    machines: Sequence[Node], cluster: Cluster, to_go: Sequence[Traces], console: Console
) -> None:
    """Stops live runs on all hosts first, then removes containers and folders."""
    for run_id in sorted(living(to_go)):
        kill_run(machines, cluster, run_id, console)
    by_host = {traces.host: traces for traces in to_go}

    def act(node: Node) -> None:
        containers = [s for s in by_host[node.name].nodes if not s.handle.startswith("/")]
        for engine in every_engine(node) if containers else ():
            for status in containers if engine.traits.in_container else ():
                engine.remove(status)
        done = node.script(REMOVE, timeout=TIMEOUT)
        if done.code != 0:
            reason = done.stderr.decode(errors="replace").strip().splitlines() or [
                "no reason given"
            ]
            raise CommandFailed(
                f"{node.name}: {reason[-1]}; files of another user need that user (or root) to be removed"
            )

    _, failures = try_each([node for node in machines if node.name in by_host], act)
    for failure in failures.values():
        console.error(str(failure))


def listed(
    found: Sequence[Traces], to_go: Sequence[Traces], kept: set[str], console: Console
) -> None:
    for traces in to_go:
        for line in traces.lines():
            console.print(line)
    for traces in found:
        if here := sorted(traces.runs & kept):
            console.say(
                f"{traces.host}: not cleaned: {', '.join(here)} is alive; stop it with "
                "`ddpctl kill`, or clean with --kill"
            )


def report(
    found: Sequence[Traces],
    left: Sequence[Traces],
    failures: Mapping[str, DdpctlError],
    console: Console,
    *,
    removed: bool,
    as_json: bool,
) -> int:
    report_unseen(failures, console)
    unclean = [traces for traces in left if not traces.none]
    if as_json:
        console.json(document(found, left, failures, removed=removed))
    elif removed:
        for traces in left:
            after = "clean" if traces.none else f"{len(traces.lines())} things still there"
            console.say(f"{traces.host}: {after}")
    elif not unclean and not failures:
        console.say("no trace of ddpctl on these hosts")
    if failures:
        return 6 if removed else 4
    return 6 if removed and unclean else 0


def document(
    found: Sequence[Traces],
    left: Sequence[Traces],
    failures: Mapping[str, DdpctlError],
    *,
    removed: bool,
) -> dict[str, Any]:
    """clean --json, version 1."""
    after = {traces.host: traces for traces in left}
    rows = [
        {
            "host": traces.host,
            "containers": [s.handle for s in traces.nodes if not s.handle.startswith("/")],
            "folder": traces.folder,
            "parts": [{"name": name, "bytes": size} for name, size in traces.parts],
            "alive": sorted(traces.living),
            "clean": traces.host in after and after[traces.host].none,
        }
        for traces in found
    ]
    return {"version": 1, "removed": removed, "hosts": rows, "unseen": unseen(failures)}
