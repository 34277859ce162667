"""Restarts by the launcher: whether to start another attempt after a failure, when, and on which hosts.

The supervisors restart a run in place as long as its hosts are alive (launcher/supervisor). What is
left to the launcher is a run that has ended for good: a host or a container was lost, for example.
"""

import dataclasses
import time
from dataclasses import dataclass

from ..diagnosis.failure_kinds import FailureKind
from ..engines.choose import engine_of
from ..errors import DdpctlError, HostUnreachable, UsageError, lines
from ..hosts import Cluster, Host
from ..outcomes import Outcome, RunState
from ..plan.plan import LaunchOptions
from ..runs.newest_attempt import newest_attempt
from ..runs.record import BY_LAUNCHER, RestartRecord, RunFolder, RunRecord, timestamp
from ..ssh.many import ask_each, try_each
from ..ssh.node import Node, connected
from ..ssh.script_files import load_script
from ..supervisor.classify import Restart
from ..supervisor.restarts import refusal
from ..terminal.console import Console
from ..text import duration
from .request import Request, past_restarts
from .run_attempt import run_attempt

BACKOFF = (2.0, 10.0, 30.0, 60.0)  # seconds before the first, second, ... restart by the launcher
NEW_CHECKPOINT = load_script(__file__, "new_checkpoint.sh")


def why_not(record: RunRecord, max_restarts: int, *, saved: bool) -> str:
    """Return why a run that has failed is not restarted; "" if it is.

    saved: it has saved a new checkpoint since its last start. The supervisors have already restarted it
    in place if they could.
    """
    failure = record.attempt.first_failure
    cause = failure.kind if failure else "unknown"
    kind = FailureKind.named(cause)
    rule = kind.restart if kind else Restart.NEVER
    if rule is Restart.ELSEWHERE:
        rule = Restart.ALWAYS
    return refusal(cause, rule, saved, past_restarts(record), max_restarts)


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
    saved = has_saved(folder, record, console)
    most, used = cluster.job.max_restarts, len(record.restarts)
    failure = record.attempt.first_failure
    if (why := why_not(record, most, saved=saved)) or failure is None:
        console.say(f"not restarting: {why}; {by_hand}")
        return None
    wait = BACKOFF[min(sum(r.kind == BY_LAUNCHER for r in record.restarts), len(BACKOFF) - 1)]
    console.say(f"restart {used + 1} of {most} in {duration(wait)}")
    time.sleep(wait)
    available = wait_for_hosts(cluster, record, console)
    if available.missing:
        missing = "; ".join(lines(available.missing))
        console.say(f"not restarting: no spare is left, and {missing}; {by_hand}")
        return None
    restart = RestartRecord.after(failure, kind=BY_LAUNCHER, time=timestamp(), saved=saved)
    record.attempt.restarts.append(restart)
    folder.try_save(record, console)
    return Request(
        available.cluster,
        options.for_restart(),
        folder.run_id,
        record,
        record.attempt.attempt + 1,
        available.former,
    )


def has_saved(folder: RunFolder, record: RunRecord, console: Console) -> bool:
    """Return whether a checkpoint was saved since the last start, on any host that answers."""
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
