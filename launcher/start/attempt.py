"""One attempt of a run, from the first contact with the hosts to its exit code."""

import contextlib
import dataclasses
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

from ..engines.choose import engine_of, engine_traits
from ..errors import HostUnreachable, PreflightError
from ..facts.gather import gather
from ..facts.script import Facts
from ..follow import hooks
from ..follow.detach import start_recorder
from ..follow.hooks import EventHook
from ..follow.interrupts import Interrupts
from ..follow.session import Session
from ..hosts import Cluster, Host, user_environment
from ..plan.build import Found, make_plan, writes_as_another_user
from ..plan.plan import LaunchOptions, Plan
from ..preflight.check import Survey, survey_hosts
from ..preflight.findings import lines
from ..push.push import Part, push
from ..runs.record import RunFolder, RunRecord, for_hosts, new_record, run_folder, timestamp
from ..ssh.local import account_name
from ..ssh.many import each_node
from ..ssh.node import Node
from ..stop.kill import finish_pending
from ..terminal.console import QUIET_BEFORE, Console
from ..text import counted
from .checkpoints import distribute_checkpoint
from .node_folders import claim
from .start_nodes import attempt_of, start
from .waiting_line import Line

SHORTEST = 0.1  # seconds; shorter steps are not listed in the summary of a start


@dataclass(frozen=True)
class NextAttempt:
    """The attempt to start: a run's first, or the one after `earlier`."""

    cluster: Cluster
    options: LaunchOptions
    run_id: str
    earlier: RunRecord | None = None
    former: tuple[Host, ...] = ()  # no longer used, but may have the run's checkpoints
    since: float | None = None  # when it asked for its GPUs, if it has waited; see Plan.since
    until: float | None = None  # when it stops waiting, by this machine's clock

    @property
    def folder(self) -> RunFolder:
        return run_folder(self.run_id)

    def plan(self, found: Found | None = None) -> Plan:
        """Return the plan of this attempt, as far as `found` determines it."""
        return make_plan(
            self.cluster,
            engine_traits(self.cluster.job.engine),
            self.options,
            run_id=self.run_id,
            owner=f"{account_name()}@{socket.gethostname()}",
            attempt=self.earlier.attempt.attempt + 1 if self.earlier else 1,
            found=found,
            env_names=list(user_environment(self.cluster.job)),
        )


def start_and_follow(
    wanted: NextAttempt,
    nodes: Sequence[Node],
    former: Sequence[Node],
    interrupts: Interrupts,
    console: Console,
    line: Line | None,
) -> int:
    """Start the attempt, then follow it to its end or detach. Return the exit code.

    line: this run's place in line, if it has one. Raises GpusTaken if other runs come first.
    """
    environment = user_environment(wanted.cluster.job)
    facts, plan = prepare_plan(wanted, nodes, console)
    uids = [f.uid for f in facts]
    if wanted.since is None:  # otherwise claimed before the run had to wait
        with console.step("claiming the attempt"):
            claim(nodes[0], plan.nodes[0].place)
    folder, record = remember(wanted, plan)
    if wanted.earlier:
        compare(wanted.earlier, plan, console)
        open_to_all = any(map(writes_as_another_user, repeat(plan), plan.nodes, uids))
        distribute_checkpoint(nodes, former, wanted.earlier, console, open_to_all=open_to_all)
    hook = EventHook(folder, wanted.options.on_event, console)
    with interrupts.held(), contextlib.closing(hook):
        attempt = attempt_of(plan, nodes)
        if line:
            line.ahead()  # raises if the run was killed meanwhile
        with console.step(f"starting {counted(plan.nnodes, 'node')}"):
            start(attempt, plan, uids, environment, for_hosts(record))
        record.attempt.state, record.attempt.started = "RUNNING", timestamp()
        folder.try_save(record, console)
        if line or wanted.since is not None:  # its tickets may be those of an earlier process
            (line or Line(attempt, plan, ignored_port=True)).close()
        number = f", attempt {plan.attempt}," if plan.attempt > 1 else ""
        console.say(
            f"run {plan.run_id}{number} started: {counted(plan.nnodes, 'node')}, "
            f"{counted(record.attempt.world_size, 'rank')}, "
            f"master {plan.master_addr}:{plan.master_port}"
        )
        hook("attempt-started", record, message=record.attempt.by)
        if times := where_time_went(console.steps):
            console.say(times)
        console.steps.clear()
        if wanted.options.detach:
            hook.close()
            return detach(folder, console)
        skews = [f.clock_skew for f in facts]
        return Session(
            attempt, folder, record, console, interrupts, start_recorder, hook, clock_skews=skews
        ).follow()


def prepare_plan(
    wanted: NextAttempt, nodes: Sequence[Node], console: Console
) -> tuple[tuple[Facts, ...], Plan]:
    """Gather facts, check, push and make the plan. Starts nothing, so Ctrl-C is safe at any time."""
    cluster, options = wanted.cluster, wanted.options
    in_container = engine_traits(cluster.job.engine).in_container
    finish_pending(nodes, cluster, console)
    here = there = None
    if options.check:
        survey = preflight(cluster, nodes, console, waits=options.wait is not None)
        facts, cluster = survey.facts, survey.cluster
        if in_container:  # so that the push need not ask for the images again
            here = survey.seen.here
            there = {
                nodes[rank]: machine.engine.image if machine.engine else None
                for machine in survey.seen.machines
                for rank in machine.ranks
            }
    else:
        with console.step(f"asking {counted(len(nodes), 'host')}"):
            facts = gather(nodes)
    parts: set[Part] = {"image", "dataset", "workdir"} if options.push else set()
    step = "pushing what is missing" if parts else "checking what the hosts already have"
    with console.step(step):
        pushed = push(nodes, cluster, parts=parts, console=console, here=here, there=there)
    with console.step(f"asking {nodes[0].name} which ports are taken"):
        claims = each_node(nodes[:1], lambda node: engine_of(node, cluster.job.engine).claims())
    reserved = [int(s.master_port) for s in claims[nodes[0]] if s.alive and s.master_port]
    found = Found(
        facts=facts,
        images=pushed.images,
        dataset_digest=pushed.report.dataset_digest,
        workdir_digest=pushed.report.workdir_digest,
        image_digest=pushed.report.image_digest,
        used_ports=frozenset(reserved),  # their runs may not be listening yet
        since=wanted.since or time.time() + facts[0].clock_skew,
    )
    return facts, dataclasses.replace(wanted, cluster=cluster).plan(found)


def preflight(cluster: Cluster, nodes: Sequence[Node], console: Console, *, waits: bool) -> Survey:
    """Check the hosts. The survey's cluster has the addresses at which they reach each other.

    Raises PreflightError, or HostUnreachable if a host did not answer, with a line per failure.
    """
    with console.step(f"checking {counted(len(nodes), 'host')}"):
        survey = survey_hosts(nodes, cluster, waits=waits)
    warnings = [finding for finding in survey.findings if finding.severity != "failure"]
    for line in lines(warnings):
        console.detail(line)
    if warnings and not survey.failures:
        count = counted(len(warnings), "warning")
        console.say(f"{count}; `ddpctl check {cluster.source}` shows them")
    if survey.failures:
        kind = HostUnreachable if survey.unseen else PreflightError
        failed = [line.removeprefix("failure: ") for line in lines(survey.failures)]
        raise kind("\n".join(failed))
    return survey


def remember(wanted: NextAttempt, plan: Plan) -> tuple[RunFolder, RunRecord]:
    """Record a PENDING attempt on this machine, with its hosts file and its hooks."""
    folder, record = wanted.folder, new_record(plan, wanted.earlier)
    folder.keep_cluster(wanted.cluster)
    folder.save(record)
    hooks.keep(folder, wanted.options)
    return folder, record


def compare(earlier: RunRecord, plan: Plan, console: Console) -> None:
    """Print which digests differ from the previous attempt."""
    for what, before, now in (
        ("image", earlier.image_digest, plan.image_digest),
        ("dataset", earlier.dataset_digest, plan.dataset_digest),
        ("code in workdir", earlier.workdir_digest, plan.workdir_digest),
    ):
        if before != now:
            last = earlier.attempt.attempt
            console.say(f"attempt {plan.attempt}: the {what} differs from that of attempt {last}")


def where_time_went(steps: Sequence[tuple[str, float]]) -> str:
    """Summarise the steps of a start, given as (name, seconds). Return "" for a quick start."""
    total = sum(seconds for _, seconds in steps)
    if total < QUIET_BEFORE:
        return ""
    shown = [f"{what} {seconds:.1f} s" for what, seconds in steps if seconds >= SHORTEST]
    return f"took {total:.1f} s: {', '.join(shown)}"


def detach(folder: RunFolder, console: Console) -> int:
    """Print the run id, and leave the run to a recorder on this machine. Return 0."""
    console.print(folder.run_id)
    start_recorder(folder)
    console.say(f"detached: `ddpctl attach {folder.run_id}` follows it again")
    return 0
