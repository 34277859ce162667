"""A short container on each machine that has the image: the effects of `trials`."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from launcher.errors import DdpctlError
from launcher.hosts import Cluster
from launcher.preflight.container_test import (
    SCRIPT,
    Trial,
    needing_torch,
    parse_trial,
    trial_container,
)
from launcher.preflight.machine import Machine
from launcher.ssh.node import Node

TRIAL_TIMEOUT = 25  # seconds; the first import of torch from a cold disk is slow


def try_containers(
    machines: Sequence[Machine], nodes: Sequence[Node], cluster: Cluster
) -> list[Trial | None]:
    token = secrets.token_hex(4)
    with_torch = needing_torch(machines)
    with ThreadPoolExecutor(len(nodes) or 1) as pool:
        return list(
            pool.map(
                lambda m, n: _trial(m, n, cluster, token, m.name in with_torch), machines, nodes
            )
        )


def _trial(
    machine: Machine, node: Node, cluster: Cluster, token: str, with_torch: bool
) -> Trial | None:
    """None where there is no image to try."""
    from launcher.engines.trial import run_trial

    argument = "torch" if with_torch else ""
    facts, docker = machine.facts, machine.docker
    if facts is None or docker is None or docker.image is None:
        return None
    folder = f"{facts.home}/.ddpctl/check-{token}"
    container = trial_container(machine, facts, cluster.job, folder, token)
    try:
        # As a run's folders are made: open to a user that is not the SSH user.
        node.script('mkdir -p "$1" && chmod 0777 "$1"', folder)
        return parse_trial(run_trial(node, container, SCRIPT, argument, timeout=TRIAL_TIMEOUT))
    except DdpctlError as error:
        return Trial(error=str(error))
    finally:
        with contextlib.suppress(DdpctlError):
            node.run(["rm", "-rf", folder])
