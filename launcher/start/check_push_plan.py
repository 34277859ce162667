"""Prepare a start: check the hosts, push what they lack, and make the plan. Starts nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..engines.choose import claims_on
from ..errors import Several
from ..facts.facts import Facts
from ..facts.gather import gather
from ..plan.build import PlanInputs
from ..plan.plan import Plan
from ..preflight.check import survey_all
from ..preflight.findings import lines
from ..push.push import ALL, NO_IMAGES, KnownImages, PushResult
from ..push.push import push as push_parts
from ..ssh.host_connection import HostConnection
from ..ssh.many import each_node
from ..terminal.console import Console
from ..text import counted
from .request import Request


@dataclass(frozen=True)
class HostSurvey:
    """What is known about the hosts of an attempt."""

    request: Request
    connections: Sequence[HostConnection]  # in rank order, as `facts` is
    facts: tuple[Facts, ...]
    images: KnownImages = NO_IMAGES
    unreached: frozenset[str] = frozenset()  # addresses that a host could not connect to


def check(
    request: Request,
    connections: Sequence[HostConnection],
    spares: Sequence[HostConnection],
    console: Console,
) -> HostSurvey:
    """Run the checks or, with --no-check, only gather the facts. Return the results.

    Prints how many warnings there are. Any problem with a spare is only a warning. Raises Several
    with the failures of the hosts.
    """
    cluster, options = request.cluster, request.options
    if not options.check:
        with console.step(f"asking {counted(len(connections), 'host')}"):
            return HostSurvey(request, connections, gather(connections))
    with console.step(f"checking {counted(len(connections), 'host')}"):
        checked = survey_all(connections, spares, cluster, waits=options.wait is not None)
    warnings = [finding for finding in checked.findings if finding.severity != "failure"]
    for line in lines(warnings):
        console.detail(line)
    if warnings and not checked.failures:
        count = counted(len(warnings), "warning")
        console.say(f"{count}; `ddpctl check {cluster.source}` shows them")
    if checked.failures:
        raise Several(finding.error() for finding in checked.failures)
    there = {connections[rank]: image for rank, image in checked.images.items()}
    images = KnownImages(checked.fleet.image_here, there)
    return HostSurvey(request, connections, checked.facts, images, checked.fleet.reach.unreached)


def push(survey: HostSurvey, spares: Sequence[HostConnection], console: Console) -> PushResult:
    """Push what the hosts and spares lack. With --no-push, verify that the hosts lack nothing."""
    wants_push = survey.request.options.push
    step = "pushing what is missing" if wants_push else "checking what the hosts already have"
    with console.step(step):
        return push_parts(
            survey.connections,
            survey.request.cluster,
            parts=ALL if wants_push else frozenset(),
            console=console,
            known=survey.images,
            spares=spares if wants_push else (),
        )


def make_plan(survey: HostSurvey, pushed: PushResult, console: Console) -> Plan:
    """Return the plan. First asks node 0 which ports other runs have reserved."""
    request, first = survey.request, survey.connections[0]
    with console.step(f"asking {first.name} which ports are taken"):
        engine = request.cluster.job.engine
        [claims] = each_node([first], lambda connection: claims_on(connection, engine)).values()
    inputs = PlanInputs(
        facts=survey.facts,
        images=pushed.images,
        dataset_digest=pushed.report.dataset_digest,
        workdir_digest=pushed.report.workdir_digest,
        image_digest=pushed.report.image_digest,
        # the runs that reserved them may not be listening yet
        used_ports=frozenset(int(s.master_port) for s in claims if s.alive and s.master_port),
        unreached=survey.unreached,
    )
    return request.plan(inputs)
