"""Whole-job restarts: whether to start another attempt after a failure, when, and on which hosts."""

import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..diagnosis.failure_kinds import FailureKind
from ..engines.choose import engine_of
from ..errors import DdpctlError, HostUnreachable, UsageError, lines
from ..hosts import Cluster, Host
from ..outcomes import Outcome, RunState
from ..plan.plan import LaunchOptions
from ..runs.newest_attempt import newest_attempt
from ..runs.record import AttemptRecord, RunFolder, RunRecord
from ..ssh.many import ask_each, try_each
from ..ssh.node import Node, connected
from ..ssh.script_files import load_script
from ..supervisor.classify import Restart
from ..terminal.console import Console
from ..text import duration
from .request import Request
from .run_attempt import run_attempt

BACKOFF = (2.0, 10.0, 30.0, 60.0)  # seconds before the first, second, ... restart
NO_PROGRESS_LIMIT = 3  # consecutive attempts without a new checkpoint
NEW_CHECKPOINT = load_script(__file__, "new_checkpoint.sh")


@dataclass(frozen=True)
class RestartDecision:
    restart: bool
    why: str
    wait: float = 0.0  # seconds


def decide(attempts: Sequence[AttemptRecord], max_restarts: int) -> RestartDecision:
    failure = attempts[-1].first_failure
    name = failure.kind if failure else "unknown"
    kind = FailureKind.named(name)
    # automatic attempts since the user last launched or resumed the run
    restarts = _in_a_row(attempts, lambda attempt: attempt.by == "restart")
    if kind is None or kind.restart is Restart.NEVER:
        return RestartDecision(False, f"a failure of kind `{name}` would happen again")
    if restarts >= max_restarts:
        return RestartDecision(False, f"{restarts} of {max_restarts} restarts are used up")
    idle = _in_a_row(attempts, lambda attempt: not attempt.progress)
    if idle >= NO_PROGRESS_LIMIT:
        return RestartDecision(False, f"{idle} attempts in a row saved no new checkpoint")
    wait = BACKOFF[min(restarts, len(BACKOFF) - 1)]
    return RestartDecision(True, f"restart {restarts + 1} of {max_restarts}", wait)


def _in_a_row(attempts: Sequence[AttemptRecord], which: Callable[[AttemptRecord], bool]) -> int:
    return sum(1 for _ in itertools.takewhile(which, reversed(attempts)))


def restart_until_done(
    folder: RunFolder, options: LaunchOptions, outcome: Outcome, console: Console
) -> Outcome:
    """Restart a run that has failed as often as the job allows. Return the last outcome."""
    while outcome.state is RunState.FAILED:
        request = next_attempt(folder, options, console)
        if request is None:
            break
        outcome = run_attempt(request, console)
    return outcome


def next_attempt(folder: RunFolder, options: LaunchOptions, console: Console) -> Request | None:
    """Return the request for a restart, after a pause, or None if the run is not restarted."""
    by_hand = f"`ddpctl resume {folder.run_id}` starts another attempt"
    try:
        cluster = folder.kept_cluster()
        if cluster.job.max_restarts == 0:
            return None
        record = folder.load()
    except (UsageError, OSError) as error:
        console.error(f"not restarting: {error}")
        return None
    record.attempt.progress = has_saved(folder, record, console)
    folder.try_save(record, console)
    decision = decide(record.attempts, cluster.job.max_restarts)
    if not decision.restart:
        console.say(f"not restarting: {decision.why}; {by_hand}")
        return None
    console.say(f"{decision.why} in {duration(decision.wait)}")
    time.sleep(decision.wait)
    available = wait_for_hosts(cluster, record, console)
    if available.missing:
        missing = "; ".join(lines(available.missing))
        console.say(f"not restarting: no spare is left, and {missing}; {by_hand}")
        return None
    return Request(
        available.cluster,
        options.for_restart(),
        folder.run_id,
        record,
        record.attempt.attempt + 1,
        available.former,
    )


def has_saved(folder: RunFolder, record: RunRecord, console: Console) -> bool:
    """Return whether the last attempt saved a checkpoint on any host that answers."""
    with (
        newest_attempt(folder, console, record) as attempt,
        console.step("looking for new checkpoints"),
    ):

        def look(node: Node) -> bool:
            place = attempt.by_node[node].place
            return bool(node.script(NEW_CHECKPOINT, place.run_dir, place.control_dir).stdout)

        found, _ = try_each(attempt.nodes, look)
        return any(found.values())


@dataclass(frozen=True)
class Available:
    cluster: Cluster
    former: tuple[Host, ...] = ()  # replaced but reachable, so they may have checkpoints
    missing: tuple[DdpctlError, ...] = ()  # of unusable hosts without a spare


def wait_for_hosts(cluster: Cluster, record: RunRecord, console: Console) -> Available:
    """Choose the hosts. Wait a while for missing ones, which may be rebooting."""
    failure = record.attempt.first_failure
    cut_off = failure.host if failure and failure.kind == FailureKind.NETWORK_CUT else None
    for wait in BACKOFF[1:]:
        available = with_spares(cluster, console, cut_off)
        if not available.missing:
            return available
        for line in lines(available.missing):
            console.say(f"{line}; looking again in {duration(wait)}")
        time.sleep(wait)
    return with_spares(cluster, console, cut_off)


def with_spares(cluster: Cluster, console: Console, cut_off: str | None = None) -> Available:
    """Replace each host that does not answer, or whose engine does not, by a spare with its rank.

    cut_off: a host that the others lost contact with. It is replaced too, but stays if no spare is
    left, since it may still answer.
    """
    answering: set[str] = set()

    def look(node: Node) -> None:
        node.connect()
        answering.add(node.name)
        engine_of(node, cluster.job.engine).list("none")

    with connected(cluster.hosts) as nodes, console.step("asking which hosts are up"):
        _, lost = ask_each(nodes, look)
    unwanted = dict(lost)
    if cut_off:
        unwanted.setdefault(cut_off, HostUnreachable("the other hosts lost contact with it"))
    hosts, spares = list(cluster.hosts), list(cluster.spares)
    for rank, host in enumerate(cluster.hosts):
        if host.name in unwanted and spares:
            hosts[rank] = spares.pop(0)
            console.say(f"{hosts[rank].name} replaces {host.name}: {unwanted[host.name].what}")
    return Available(
        dataclasses.replace(cluster, hosts=tuple(hosts), spares=tuple(spares)),
        tuple(h for h in cluster.hosts if h not in hosts and h.name in answering),
        tuple(lost[host.name] for host in hosts if host.name in lost),
    )
