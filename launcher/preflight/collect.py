"""Looking at one machine: its facts, its details, its engine. Nothing is changed there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from launcher.engines.choose import engine_of
from launcher.errors import CommandTimeout, DdpctlError, DockerUnavailable
from launcher.facts.gather import gather_one
from launcher.facts.script import Facts
from launcher.hosts import Cluster, Host
from launcher.preflight.machine import Docker, Image, Machine, docker_of, image_of
from launcher.ssh.node import Node

USUAL_ROOT = "/var/lib/docker"  # so that nobody waits for the engine to name it


def look(
    name: str,
    group: Sequence[Node],
    ranks: Sequence[int],
    cluster: Cluster,
    facts: Facts | None,
    meanwhile: Callable[[], None] | None = None,
) -> Machine:
    """What can be seen of one machine; what cannot is left out and its cause kept."""
    node = next((node for node in group if node.host.gpus != 0), group[0])
    machine = Machine(name, tuple(ranks), tuple(node.host for node in group))
    try:
        node.connect()
        with ThreadPoolExecutor(3) as beside:
            if meanwhile:
                beside.submit(meanwhile)
            port = cluster.job.master_port if 0 in ranks else "auto"
            folders = [mount.split(":")[0] for mount in cluster.job.mounts]
            check = ["" if port == "auto" else str(port), *folders]
            first = 0 in ranks
            asking = beside.submit(gather_one, node, ports=first, check=[USUAL_ROOT, *check])
            docker, docker_error = _docker(node, cluster)
            found = facts or asking.result()
            if docker and docker.root != USUAL_ROOT:
                found = gather_one(node, ports=first, check=[docker.root, *check])
        return dataclasses.replace(
            machine,
            facts=found,
            details=found.details,
            docker=docker,
            docker_error=docker_error,
        )
    except DdpctlError as error:
        return dataclasses.replace(machine, ssh_error=str(error))


def _docker(node: Node, cluster: Cluster) -> tuple[Docker | None, str | None]:
    if cluster.job.engine != "docker":
        return None, None
    from launcher.engines.engine_info import engine_info, image_info, run_of_containers

    try:
        info = engine_info(node)
        image = image_info(node, cluster.job.image)
        nodes = engine_of(node, "docker").list()
        return docker_of(info, image, nodes, run_of_containers(node)), None
    except (DockerUnavailable, CommandTimeout) as error:
        return None, str(error)


def image_here(cluster: Cluster) -> Image | None:
    """The image as this machine's own engine has it, if there is one."""
    if cluster.job.engine != "docker":
        return None
    from launcher.engines.engine_info import image_info

    node = Node(Host("local"))
    try:
        inspected = image_info(node, cluster.job.image)
        return image_of(inspected) if inspected else None
    except DdpctlError:
        return None
    finally:
        node.close()
