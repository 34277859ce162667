"""Whole-job restarts: whether a failure is worth another attempt, when, and on which hosts."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from launcher.engines.choose import engine_of
from launcher.hosts import Cluster, Host
from launcher.plan.plan import place_in
from launcher.runs.record import AttemptRecord, RunFolder, RunRecord
from launcher.ssh.many import ask_each, try_each
from launcher.ssh.node import Node, connected
from launcher.terminal.console import Console

# What may not happen again by itself. Everything else (a bad argument, missing data, an exception,
# memory, a loss that diverged) would only fail the same way once more.
MENDABLE = frozenset(
    ("killed", "container-killed", "host-lost", "network-cut", "peer-gone", "stopped")
    + ("never-joined", "terminated", "hung", "collective-timeout")
)
BACKOFF = (2.0, 10.0, 30.0, 60.0)  # seconds before the first, second, ... restart
NO_PROGRESS_LIMIT = 3  # attempts in a row without a new checkpoint

# Prints a word when something was saved under $1/checkpoints since $2/spec.json was written.
PROGRESS = 'find "$1/checkpoints" -type f -newer "$2/spec.json" 2>/dev/null | head -n 1'


@dataclass(frozen=True)
class Verdict:
    again: bool
    why: str
    wait: float = 0.0  # seconds


def decide(attempts: Sequence[AttemptRecord], max_restarts: int) -> Verdict:
    """After a failure: another attempt, or the reason why not."""
    failure = attempts[-1].first_failure
    kind = failure.kind if failure else "unknown"
    restarts = since_asked_for(attempts)
    if kind not in MENDABLE:
        return Verdict(False, f"a restart does not mend `{kind}`")
    if restarts >= max_restarts:
        return Verdict(False, f"{restarts} of {max_restarts} restarts are used up")
    idle = 0
    for attempt in reversed(attempts):
        if attempt.progress:
            break
        idle += 1
    if idle >= NO_PROGRESS_LIMIT:
        return Verdict(False, f"{idle} attempts in a row saved nothing new")
    wait = BACKOFF[min(restarts, len(BACKOFF) - 1)]
    return Verdict(True, f"restart {restarts + 1} of {max_restarts}", wait)


def since_asked_for(attempts: Sequence[AttemptRecord]) -> int:
    """How often in a row the run was started again without anybody's asking."""
    by_itself = itertools.takewhile(lambda a: a.by == "restart", reversed(attempts))
    return sum(1 for _ in by_itself)


def until_done(
    cluster: Cluster,
    folder: RunFolder,
    code: int,
    again: Callable[[Cluster, RunRecord, Sequence[Host]], int],
    console: Console,
) -> int:
    """Restarts a failed run as often as the job allows; returns the last attempt's exit code.

    code: of the attempt that has ended. again: starts the next one, on these hosts, and follows it
    to its end; it is also given the hosts that have left and can still be asked.
    """
    while code == 1 and cluster.job.max_restarts > 0:
        record = folder.load()
        record.attempt.progress = has_saved(cluster, record)
        folder.save(record)
        verdict = decide(record.attempts, cluster.job.max_restarts)
        if not verdict.again:
            console.say(f"no restart: {verdict.why}")
            break
        console.say(f"{verdict.why} in {verdict.wait:g} s")
        time.sleep(verdict.wait)
        failure = record.attempt.first_failure
        cut_off = failure.host if failure and failure.kind == "network-cut" else None
        standing = with_spares(cluster, console, cut_off)
        for wait in BACKOFF[1:]:  # a host that was switched on again takes its time
            if not standing.missing:
                break
            console.say(f"{'; '.join(standing.missing)}; looking again in {wait:g} s")
            time.sleep(wait)
            standing = with_spares(cluster, console, cut_off)
        if standing.missing:
            console.say(f"no restart: no spare is left, and {'; '.join(standing.missing)}")
            break
        cluster = standing.cluster
        code = again(cluster, record, standing.left)
    return code


def has_saved(cluster: Cluster, record: RunRecord) -> bool:
    """Whether any host that can be seen holds something that the last attempt saved."""
    with connected(cluster.hosts) as nodes:
        ranks = {node: rank for rank, node in enumerate(nodes)}

        def look(node: Node) -> bool:
            entry = record.attempt.nodes[ranks[node]]
            attempt = record.attempt.attempt
            place = place_in(entry.run_dir, record.run_id, entry.node_rank, attempt)
            done = node.script(PROGRESS, place.run_dir, place.control_dir)
            return bool(done.stdout.strip())

        found, _ = try_each(nodes, look)
        return any(found.values())


@dataclass(frozen=True)
class Standing:
    """Hosts for the next attempt."""

    cluster: Cluster
    left: tuple[Host, ...] = ()  # lost their places, but answer: they may have checkpoints
    missing: tuple[str, ...] = ()  # why hosts cannot take part, where there is no spare for them


def with_spares(cluster: Cluster, console: Console, cut_off: str | None = None) -> Standing:
    """A spare in the place, and with the rank, of each host that is lost or whose engine is.

    cut_off: a host that its peers lost. It may well answer us, so it goes on only without a spare.
    """
    answering: set[str] = set()

    def look(node: Node) -> None:
        node.connect()
        answering.add(node.name)
        engine_of(node, cluster.job.engine).list("none")

    with connected(cluster.hosts) as nodes:
        _, failures = ask_each(nodes, look)
    lost = {name: str(failure) for name, failure in failures.items()}
    unwanted = dict(lost)
    if cut_off:
        unwanted.setdefault(cut_off, f"{cut_off}: the other hosts lost it")
    hosts: list[Host] = []
    spares = list(cluster.spares)
    for host in cluster.hosts:
        if host.name in unwanted and spares:
            spare = spares.pop(0)
            console.say(f"{spare.name} takes the place of {host.name}: {unwanted[host.name]}")
            hosts.append(spare)
        else:
            hosts.append(host)
    gone = [host for host in cluster.hosts if host not in hosts]
    return Standing(
        dataclasses.replace(cluster, hosts=tuple(hosts), spares=tuple(spares)),
        tuple(host for host in gone if host.name in answering),
        tuple(lost[host.name] for host in hosts if host.name in lost),
    )
