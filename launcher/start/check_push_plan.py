"""Prepare a start: check the hosts, push what they lack, and make the plan. Starts nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import PreflightError, Several
from ..facts.facts import Facts
from ..facts.gather import gather
from ..plan.build import PlanInputs
from ..preflight.check import survey_all
from ..preflight.findings import lines
from ..push.push import NO_IMAGES, KnownImages, PushResult
from ..push.push import push as push_parts
from ..ssh.host_connection import HostConnection
from ..terminal.console import Console
from ..text import counted
from .check_command import require_script
from .planned_attempt import PlannedAttempt
from .request import Request


@dataclass(frozen=True)
class CheckedHosts:
    """The hosts of an attempt and the results of their checks. With --no-check, only their facts."""

    connections: Sequence[HostConnection]  # in rank order, like `facts`
    facts: tuple[Facts, ...]
    images: KnownImages = NO_IMAGES
    unreached: frozenset[str] = frozenset()  # addresses that a host could not connect to


def check(
    request: Request,
    connections: Sequence[HostConnection],
    spares: Sequence[HostConnection],
    console: Console,
) -> CheckedHosts:
    """Run the checks or, with --no-check, only gather the facts. Return the results.

    Prints how many warnings there are. Any problem with a spare is only a warning. Raises Several
    with the failures of the hosts.
    """
    cluster, options = request.cluster, request.options
    if not options.check:
        with console.step(f"asking {counted(len(connections), 'host')}"):
            facts = gather(connections)
        require_known_gpus(connections, facts)
        return CheckedHosts(connections, facts)
    with console.step(f"checking {counted(len(connections), 'host')}"):
        survey = survey_all(connections, spares, cluster, waits=options.wait is not None)
    warnings = [finding for finding in survey.findings if finding.severity != "failure"]
    for line in lines(warnings):
        console.detail(line)
    if survey.failures:
        raise Several(finding.error() for finding in survey.failures)
    if warnings:
        count = counted(len(warnings), "warning")
        hosts = "-H HOSTS" if cluster.source == "-H" else cluster.source
        console.say(f"{count}; see `ddpctl check {hosts}`")
    there = {connections[rank]: image for rank, image in survey.images.items()}
    images = KnownImages(survey.fleet.image_here, there)
    return CheckedHosts(connections, survey.facts, images, survey.fleet.reach.unreached)


def require_known_gpus(connections: Sequence[HostConnection], facts: Sequence[Facts]) -> None:
    """Raise Several if `gpus: all` would mean none because nvidia-smi fails."""
    remedy = "fix the NVIDIA driver on that host, or set gpus: 0"
    problems = [
        PreflightError(f"nvidia-smi fails: {each.gpu_error}", remedy, host=connection.name)
        for connection, each in zip(connections, facts, strict=True)
        if each.gpu_error and connection.host.gpus == "all"
    ]
    if problems:
        raise Several(problems)


def push(
    request: Request, hosts: CheckedHosts, spares: Sequence[HostConnection], console: Console
) -> PushResult:
    """Push what the hosts and spares lack, and return the result.

    With --no-push, verify that the hosts lack nothing.
    """
    wants_push = request.options.push
    step = "pushing what is missing" if wants_push else "checking what the hosts already have"
    with console.step(step):
        pushed = push_parts(
            hosts.connections,
            request.cluster,
            console=console,
            only_verify=not wants_push,
            known=hosts.images,
            spares=spares if wants_push else (),
        )
    require_script(request.cluster.job, pushed.report.left_out)
    return pushed


def make_plan(request: Request, hosts: CheckedHosts, pushed: PushResult) -> PlannedAttempt:
    """Plan the attempt on these hosts."""
    inputs = PlanInputs(
        facts=hosts.facts,
        images=pushed.images,
        dataset_digest=pushed.report.dataset_digest,
        workdir_digest=pushed.report.workdir_digest,
        image_digest=pushed.report.image_digest,
        unreached=hosts.unreached,
    )
    return request.planned(hosts.connections, inputs)
