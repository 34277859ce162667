"""Launching: check, push, plan, start on every node, follow to the end.

What comes after the first question to the hosts is imported there: it loads while they answer.
"""

from __future__ import annotations

import dataclasses
import datetime
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launcher import push
from launcher.engines.attempt import RunningAttempt, RunningNode
from launcher.engines.choose import engine_of
from launcher.engines.engine_info import ImageInfo
from launcher.errors import HostUnreachable, PreflightError
from launcher.facts.gather import gather
from launcher.facts.script import Facts
from launcher.follow.session import Session
from launcher.follow.signals import Interrupts
from launcher.hosts import Cluster, Host, dump, read_env_file
from launcher.launch import exit_hook
from launcher.launch.recorder import spawn
from launcher.launch.restart import until_done
from launcher.launch.start import members, start
from launcher.plan.plan import Found, Plan, make_plan, writes_as_another
from launcher.preflight.findings import lines
from launcher.preflight.run import Survey, survey_hosts
from launcher.runs.record import RunFolder, RunRecord, new_attempt, new_record, timestamp
from launcher.ssh.account import account_name
from launcher.ssh.node import Node, connected
from launcher.state import make_folder, state_home, write_atomically
from launcher.stop.unconfirmed import finish_pending
from launcher.terminal.console import Console


@dataclass(frozen=True)
class Wishes:
    """What the command line asks of a launch beyond the hosts file."""

    name: str = ""
    detach: bool = False
    push: bool = True
    check: bool = True
    hang_timeout: float | None = None
    node_env: tuple[Mapping[str, str], ...] = ()  # by node rank, beside what the job says
    on_exit: str | None = None  # for `sh -c` when the run has ended
    by: str = "launch"  # what begins this attempt: launch, resume or restart


def new_run_id(name: str, now: datetime.datetime, suffix: str) -> str:
    """Sorts by time, is unique, and stays legal in a container name and a label."""
    return "-".join(part for part in (name, now.strftime("%Y%m%d-%H%M%S"), suffix) if part)


def new_run(name: str) -> str:
    """The id of a run that begins now."""
    return new_run_id(name, datetime.datetime.now(), secrets.token_hex(2))


def owner() -> str:
    return f"{account_name()}@{socket.gethostname()}"


def dry_run(cluster: Cluster, wishes: Wishes, now: datetime.datetime) -> Plan:
    """The plan as far as it is known without asking anybody."""
    run_id = new_run_id(wishes.name, now, secrets.token_hex(2))
    return make_plan(cluster, run_id=run_id, owner=owner(), name=wishes.name)


def launch(cluster: Cluster, wishes: Wishes, console: Console) -> int:
    """check, push, start on every node, follow to the end; returns the exit code of CONTRACT 6."""
    run_id = new_run(wishes.name)
    with exit_hook.at_the_end(RunFolder(state_home() / "runs" / run_id), console) as ending:
        ending.code = run_attempt(cluster, wishes, console, run_id)
        if not wishes.detach:  # or else the recorder sees to restarts
            ending.code = with_restarts(cluster, wishes, console, run_id, ending.code)
    return ending.code


def with_restarts(
    cluster: Cluster, wishes: Wishes, console: Console, run_id: str, code: int
) -> int:
    """The exit code of the last attempt, after as many as the job allows and make sense."""
    folder = RunFolder(state_home() / "runs" / run_id)

    once_more = dataclasses.replace(wishes, by="restart", detach=False)

    def again(others: Cluster, record: RunRecord, former: Sequence[Host]) -> int:
        return run_attempt(others, once_more, console, run_id, record, former)

    return until_done(cluster, folder, code, again, console)


def run_attempt(
    cluster: Cluster,
    wishes: Wishes,
    console: Console,
    run_id: str,
    earlier: RunRecord | None = None,
    former: Sequence[Host] = (),
) -> int:
    """One attempt of a run, from the first question to the exit code.

    earlier: what is resumed. former: hosts that take no part now and may have its checkpoints.
    """
    with (
        connected(cluster.hosts) as nodes,
        connected(former) as leaving,
        Interrupts() as interrupts,
    ):
        facts, plan = prepare_plan(cluster, wishes, console, nodes, run_id, earlier)
        if earlier:
            from launcher.launch.checkpoint_transfer import hand_over

            foreign = any(writes_as_another(plan, f) for f in facts)
            hand_over(nodes, leaving, earlier, console, open_to_all=foreign)
        folder, record = remember(plan, cluster, wishes, earlier)
        if wishes.on_exit is not None:
            exit_hook.keep(folder, wishes.on_exit)
        with interrupts.held():
            party = start_all(cluster, wishes, console, nodes, facts, plan, folder, record)
            if wishes.detach:
                return detach(folder, console)
            skews = [f.clock_skew for f in facts]
            session = Session(party, folder, record, console, interrupts, spawn, clock_skews=skews)
            return session.follow()


def prepare_plan(
    cluster: Cluster,
    wishes: Wishes,
    console: Console,
    nodes: Sequence[Node],
    run_id: str,
    earlier: RunRecord | None,
) -> tuple[tuple[Facts, ...], Plan]:
    """Asks the hosts, checks and pushes; nothing is started yet, so a Ctrl-C may come any time."""
    finish_pending(nodes, cluster, console)
    inspected = None
    if wishes.check:
        survey = preflight(cluster, nodes, console)
        facts, cluster = survey.facts, survey.cluster
        inspected = inspected_by(survey, nodes) if cluster.job.engine == "docker" else None
    else:
        with console.step(f"asking {len(nodes)} hosts"):
            facts = gather(nodes)
    what: set[push.What] = {"image", "dataset", "workdir"} if wishes.push else set()
    progress = push.progress_for(console)
    pushed = push.push(nodes, cluster, what=what, progress=progress, inspected=inspected)
    found = Found(
        facts=facts,
        images=pushed.images,
        dataset_digest=pushed.dataset_digest,
        workdir_digest=pushed.workdir_digest,
        image_digest=pushed.image_digest,
        used_ports=used_ports(nodes[0], cluster),
    )
    plan = make_plan(
        cluster,
        run_id=run_id,
        owner=owner(),
        name=earlier.name if earlier else wishes.name,
        attempt=len(earlier.attempts) + 1 if earlier else 1,
        resume=earlier is not None,
        found=found,
        node_env=wishes.node_env,
    )
    return facts, plan


def start_all(
    cluster: Cluster,
    wishes: Wishes,
    console: Console,
    nodes: Sequence[Node],
    facts: Sequence[Facts],
    plan: Plan,
    folder: RunFolder,
    record: RunRecord,
) -> RunningAttempt:
    """All nodes started and recorded as RUNNING, or none and recorded as FAILED."""
    crew = members(nodes, plan)
    try:
        start(
            crew,
            plan,
            facts,
            record=dataclasses.asdict(record),
            token=secrets.token_hex(32),
            secrets=read_env_file(cluster.job.env_file) if cluster.job.env_file else {},
            hang_timeout=wishes.hang_timeout,
        )
    except BaseException:
        record.attempt.state, record.attempt.ended = "FAILED", timestamp()
        folder.save(record)
        raise
    record.attempt.state, record.attempt.started = "RUNNING", timestamp()
    folder.save(record)
    ranks = f"{plan.nnodes} nodes, {plan.world_size} ranks"
    where = f"master {plan.master_addr}:{plan.master_port}"
    console.say(f"run {plan.run_id} started: {ranks}, {where}")
    return RunningAttempt(tuple(RunningNode(m.node, m.engine, m.plan.place) for m in crew))


def used_ports(node: Node, cluster: Cluster) -> frozenset[int]:
    """Master ports promised to runs on node 0 that may not listen yet."""
    statuses = engine_of(node, cluster.job.engine).list()
    return frozenset(int(s.master_port) for s in statuses if s.alive and s.master_port.isdigit())


def preflight(cluster: Cluster, nodes: Sequence[Node], console: Console) -> Survey:
    """What was seen of every host, and the addresses by which they reach each other.

    Warnings are counted. Raises with a line for every failure, before anything is pushed:
    HostUnreachable when a host was not seen, else PreflightError.
    """
    with console.step(f"checking {len(nodes)} hosts"):
        survey = survey_hosts(nodes, cluster)
    warnings = [finding for finding in survey.findings if finding.severity != "failure"]
    for line in lines(warnings):
        console.detail(line)
    if warnings and not survey.failures:
        console.say(f"{len(warnings)} warnings; `ddpctl check {cluster.source}` shows them")
    if survey.failures:
        kind = HostUnreachable if survey.unseen else PreflightError
        raise kind("\n".join(lines(survey.failures)))
    return survey


def inspected_by(survey: Survey, nodes: Sequence[Node]) -> push.Inspected:
    """The image as the check found it, so that the push need not ask for it."""

    def parsed(image: ImageInfo | None) -> push.Image | None:
        return push.parse_image(image.inspected) if image else None

    there = {
        nodes[rank]: parsed(machine.engine.image if machine.engine else None)
        for machine in survey.seen.machines
        for rank in machine.ranks
    }
    return push.Inspected(parsed(survey.seen.here), there)


def remember(
    plan: Plan, cluster: Cluster, wishes: Wishes, earlier: RunRecord | None
) -> tuple[RunFolder, RunRecord]:
    """The run's folder on this machine, with hosts.yaml as used and a PENDING attempt."""
    folder = RunFolder(state_home() / "runs" / plan.run_id)
    make_folder(folder.logs)
    write_atomically(folder.hosts_file, dump(cluster))
    record = new_record(plan, wishes.hang_timeout)
    record.attempts = [new_attempt(plan, wishes.by)]
    if earlier:
        record.attempts = [*earlier.attempts, *record.attempts]
        # a lost host that takes no part any more may still have to be seen to have stopped
        record.pending_stop = [h for h in earlier.pending_stop if h not in record.hosts]
    folder.save(record)
    return folder, record


def detach(folder: RunFolder, console: Console) -> int:
    """Leaves the run to itself, and its logs to a recorder of this machine."""
    spawn(folder)
    console.say(f"detached: `ddpctl attach {folder.run_id}` follows it again")
    console.print(folder.run_id)
    return 0
