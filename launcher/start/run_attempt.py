"""Run an attempt as soon as the GPUs are free: at once, or after waiting in line with --wait."""

import contextlib
import dataclasses
import signal
import time
from collections.abc import Iterator, Sequence

from ..errors import PreflightError, RunKilled
from ..facts.gather import gather_one
from ..facts.script import Facts
from ..follow.detach import start_recorder
from ..follow.hooks import EventHook
from ..follow.interrupts import Interrupts
from ..follow.session import EXIT_INTERRUPTED
from ..plan.build import Found
from ..plan.topology import gpu_ids, same_subnet_first
from ..runs.record import RunFolder, timestamp
from ..ssh.many import by_name, nodes_failed, try_each
from ..ssh.node import Node, connected
from ..state import locked, make_folder, require_writable
from ..terminal.console import Console
from ..text import counted, names
from .attempt import NextAttempt, detach, remember, start_and_follow
from .node_folders import claim
from .start_nodes import GpusTaken, attempt_of
from .waiting_line import POLL, Line

WAITING = "waiting.lock"  # locked by the process that waits in line for the run


def run_attempt(wanted: NextAttempt, console: Console) -> int:
    """Check, push, start on every node, then follow to the end or detach. Return the exit code."""
    with (
        connected(wanted.cluster.hosts) as nodes,
        connected(wanted.former) as former,
        Interrupts() as interrupts,
        contextlib.ExitStack() as place,
        record_failed_start(wanted.folder, wanted.options.on_event, console),
    ):
        require_writable(wanted.folder.path.parent)
        line: Line | None = None
        while True:
            chosen, limit = wanted, wanted.options.wait
            try:
                chosen, its_nodes = choose_hosts(wanted, nodes, console)
                return start_and_follow(chosen, its_nodes, former, interrupts, console, line)
            except GpusTaken as taken:
                if limit is None:
                    raise
                again = chosen is not wanted  # another launch was faster on one of these hosts
                until = wanted.until or (time.time() + limit if limit else None)
                wanted = dataclasses.replace(wanted, since=taken.plan.since, until=until)
                if again:
                    time.sleep(POLL)
                    continue
                if line is None:
                    place.enter_context(locked(make_folder(wanted.folder.path) / WAITING))
                    any_port = wanted.cluster.job.master_port == "auto"
                    line = Line(taken.attempt, taken.plan, ignored_port=any_port)
                    place.callback(line.close)
                code = wait(line, wanted, taken, interrupts, console)
                if code is not None:
                    return code


def wait(
    line: Line, wanted: NextAttempt, taken: GpusTaken, interrupts: Interrupts, console: Console
) -> int | None:
    """Record that the run waits, and wait in line.

    Return None when it is this run's turn, or the exit code if another process took over.
    """
    folder, record = remember(wanted, taken.plan)
    record.attempt.state = "WAITING"
    record.attempt.waiting_since, record.attempt.waiting_until = wanted.since, wanted.until
    folder.try_save(record, console)
    for text in taken.lines:
        console.say(f"run {folder.run_id} waits: {text}")
    line.join()
    if wanted.options.detach:
        line.abandon()
        return detach(folder, console)
    needed = wanted.options.nodes or wanted.cluster.nnodes
    number = line.wait(needed, wanted.until, taken.lines, interrupts, console)
    if number is None:
        return None
    if number != signal.SIGHUP:
        raise KeyboardInterrupt
    line.abandon()
    start_recorder(folder)
    return EXIT_INTERRUPTED


@contextlib.contextmanager
def record_failed_start(
    folder: RunFolder, on_event: str | None, console: Console
) -> Iterator[None]:
    """If the block fails, record the attempt's end and run --on-event."""
    try:
        yield
    except BaseException as error:
        record = folder.load_if_readable(console)
        if record and record.state in ("WAITING", "PENDING"):
            cancelled = isinstance(error, KeyboardInterrupt | RunKilled)
            record.attempt.state = "CANCELLED" if cancelled else "FAILED"
            record.attempt.ended = timestamp()
            folder.try_save(record, console)
            with contextlib.closing(EventHook(folder, on_event, console)) as hook:
                hook("attempt-ended", record, message=record.attempt.state)
        raise


def choose_hosts(
    wanted: NextAttempt, nodes: Sequence[Node], console: Console
) -> tuple[NextAttempt, Sequence[Node]]:
    """Return `wanted` and its nodes; with --nodes N, N hosts with free GPUs. Raises GpusTaken."""
    count = wanted.options.nodes or len(nodes)
    if count >= len(nodes):
        return wanted, nodes
    with console.step(f"asking {counted(len(nodes), 'host')} which GPUs are free"):
        facts, failures = try_each(nodes, lambda node: gather_one(node, ports=False))
    for error in failures.values():
        console.say(f"left out: {error}")
    able = with_requested_gpus(facts)
    if len(able) < count:
        if failures:
            raise nodes_failed(by_name(nodes, failures))
        raise PreflightError(
            f"--nodes {count}: only {counted(len(able), 'host')} with the GPUs that the hosts file "
            "names; `ddpctl check` shows what is wrong"
        )
    usable = with_hosts(wanted, able)
    since = wanted.since or time.time() + facts[able[0]].clock_skew
    plan = usable.plan(Found(tuple(facts[node] for node in able), (), since=since))
    attempt = attempt_of(plan, able)
    line = Line(attempt, plan, ignored_port=True)
    ahead = line.ahead()
    free = [rank for rank, node in enumerate(able) if ahead.get(node) == []]
    if len(free) < count:
        if wanted.options.wait is not None and wanted.since is None:
            claim(able[0], plan.nodes[0].place)  # start_and_follow will not, after the wait
        raise GpusTaken(line.describe(ahead), attempt, plan)
    subnets = [facts[able[r]].network_of(plan.nodes[r].internal_ip) for r in free]
    picked = [able[free[index]] for index in same_subnet_first(subnets, count)]
    console.say(f"runs on {names(node.name for node in picked)}")
    return with_hosts(wanted, picked), picked


def with_hosts(wanted: NextAttempt, nodes: Sequence[Node]) -> NextAttempt:
    cluster = dataclasses.replace(wanted.cluster, hosts=tuple(node.host for node in nodes))
    return dataclasses.replace(wanted, cluster=cluster)


def with_requested_gpus(facts: dict[Node, Facts]) -> list[Node]:
    """Return the nodes with the GPUs that the hosts file names; all nodes if none has a GPU."""
    if not any(each.gpus for each in facts.values()):
        return list(facts)
    return [
        node
        for node, each in facts.items()
        if {*gpu_ids(node.host, each)} <= {gpu.index for gpu in each.gpus}
        and (each.gpus or node.host.gpus == 0)
    ]
