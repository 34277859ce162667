"""Choose an attempt's hosts: all in the hosts file or, with --nodes N, any N with free GPUs."""

from collections.abc import Mapping, Sequence

from ..errors import NodesFailed, PreflightError, lines
from ..facts.facts import Facts
from ..facts.gather import gather_one
from ..plan.build import PlanInputs
from ..plan.node_gpus import gpu_ids
from ..plan.topology import same_subnet_first
from ..ssh.host_connection import HostConnection
from ..ssh.many import by_name, try_each
from ..terminal.console import Console
from ..text import counted, names
from .planned_attempt import Refused
from .request import Request
from .settle_with_rivals import free_hosts, list_claims


def choose_hosts(
    request: Request, connections: Sequence[HostConnection], console: Console
) -> Sequence[HostConnection] | Refused:
    """Return all hosts or, with --nodes N, any N with free GPUs, in rank order.

    Return Refused if too few hosts have free GPUs. Raises PreflightError or NodesFailed if too few
    hosts have the GPUs that the hosts file asks for.
    """
    count = request.options.nodes or len(connections)
    if count >= len(connections):
        return connections
    with console.step(f"asking {counted(len(connections), 'host')} which GPUs are free"):
        facts, failures = try_each(connections, gather_one)
    for line in lines(failures.values()):
        console.say(f"left out: {line}")
    able = with_requested_gpus(facts)
    if len(able) < count:
        if failures:
            raise NodesFailed(by_name(connections, failures))
        raise PreflightError(
            f"--nodes {count}: found only {counted(len(able), 'host')} with the GPUs "
            "that the hosts file asks for",
            "run `ddpctl check` to see what is wrong",
        )
    # a plan for all of them, only to know each one's GPUs and address; no node comes of it
    inputs = PlanInputs(tuple(facts[connection] for connection in able))
    planned = request.planned(able, inputs)
    free, reasons = free_hosts(planned, list_claims(planned))
    if len(free) < count:
        return Refused(planned, reasons)
    ips = [planned.node_plans[connection].internal_ip or "" for connection in free]
    subnets = [facts[connection].network_of(ip) for connection, ip in zip(free, ips, strict=True)]
    chosen = [free[index] for index in same_subnet_first(subnets, count)]
    console.say(f"the run uses {names(connection.name for connection in chosen)}")
    return chosen


def with_requested_gpus(facts: Mapping[HostConnection, Facts]) -> list[HostConnection]:
    """Return the hosts with the GPUs that the hosts file asks for; all hosts if none has a GPU."""
    if not any(each.gpus for each in facts.values()):
        return list(facts)
    return [
        connection
        for connection, each in facts.items()
        if {*gpu_ids(connection.host, each)} <= {gpu.index for gpu in each.gpus}
        and (each.gpus or connection.host.gpus == 0)
    ]
