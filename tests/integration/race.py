"""Race pairs of launches for the same GPUs: `race.py HOSTS PAIRS` prints a JSON object for each pair.

Both launches of a pair have their own connections and create, claim and start real containers,
which only sleep. Their GPUs exist only in the containers' labels.
"""

from __future__ import annotations

import dataclasses
import json
import random
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from launcher.engines.docker import Docker
from launcher.facts.facts import Facts
from launcher.facts.gather import gather
from launcher.facts.gpus import Gpu
from launcher.hosts import Cluster, load
from launcher.plan.build import PlanInputs
from launcher.plan.launch_options import LaunchOptions
from launcher.plan.plan import Plan
from launcher.ssh.host_connection import HostConnection, connected
from launcher.ssh.many import each_node
from launcher.start.planned_attempt import PlannedAttempt
from launcher.start.request import Request
from launcher.start.settle_with_rivals import settle_with_rivals
from launcher.start.start_nodes import create_nodes, remove_nodes, start_nodes
from launcher.terminal.console import Console

Party = tuple[Plan, list[HostConnection]]


def main(hosts: str, pairs: int) -> None:
    given = load(hosts)
    chance = random.Random(1)
    with connected(given.hosts) as one, connected(given.hosts) as two:
        facts = [
            dataclasses.replace(
                each, gpus=(Gpu(0, f"GPU-{n}-0", "", 1), Gpu(1, f"GPU-{n}-1", "", 1))
            )
            for n, each in enumerate(gather(one))
        ]
        with ThreadPoolExecutor(2) as pool:
            for number in range(pairs):
                shared = chance.randrange(3)
                both = [
                    party(f"race-{number}-{side}", connections, given, facts, shared, chance)
                    for side, connections in (("a", one), ("b", two))
                ]
                barrier = threading.Barrier(2)
                started = list(pool.map(race, *zip(*both, strict=True), [barrier] * 2))
                seen = each_node(one, lambda connection: Docker(connection).claims())
                alive = [
                    (connection.name, gpu, status.run_id)
                    for connection, statuses in seen.items()
                    for status in statuses
                    for gpu in status.gpus
                ]
                print(json.dumps({"started": started, "there": alive}), flush=True)
                for plan, connections in both:
                    remove_nodes(PlannedAttempt(plan, connections), Console(quiet=True))


def party(
    run_id: str,
    connections: Sequence[HostConnection],
    given: Cluster,
    facts: Sequence[Facts],
    shared: int,
    chance: random.Random,
) -> Party:
    """Return a launch that wants GPUs of the shared host and often of another one."""
    ranks = sorted({shared, chance.randrange(3)})
    cluster = dataclasses.replace(given, hosts=tuple(given.hosts[rank] for rank in ranks))
    since = float(chance.randrange(1, 4))
    inputs = PlanInputs(tuple(facts[r] for r in ranks), (given.job.image,) * len(ranks))
    plan = Request(cluster, LaunchOptions(), run_id, since=since).plan(inputs)
    asleep = tuple(
        dataclasses.replace(
            node,
            container=dataclasses.replace(
                node.container, gpus=(), ulimits={}, entrypoint=("sleep", "600"), stop_timeout=0
            ),
        )
        for node in plan.nodes
    )
    return dataclasses.replace(plan, nodes=asleep), [connections[rank] for rank in ranks]


def race(
    plan: Plan, connections: Sequence[HostConnection], barrier: threading.Barrier
) -> str | None:
    """Return the run id if it started."""
    barrier.wait()
    console = Console(quiet=True)
    planned = PlannedAttempt(plan, connections)
    create_nodes(planned, {}, {}, console)
    if settle_with_rivals(planned, console, time.sleep):
        remove_nodes(planned, console, folders=True)
        return None
    start_nodes(planned, {}, console)
    return plan.run_id


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
