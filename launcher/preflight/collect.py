"""Looking at one machine: its facts, its details, its engine. Nothing is changed there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from launcher.engines.choose import engine_of
from launcher.engines.images import Image
from launcher.errors import CommandFailed, CommandTimeout, DdpctlError, DockerUnavailable
from launcher.facts import hardware as details_module
from launcher.facts.gather import gather_one
from launcher.facts.hardware import Details
from launcher.facts.script import Facts
from launcher.hosts import Cluster, Host
from launcher.preflight.machine import Docker, Machine, docker_of
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
            asking = beside.submit(lambda: facts or gather_one(node, ports=0 in ranks))
            port = cluster.job.master_port if 0 in ranks else "auto"
            asked = ["" if port == "auto" else str(port), "gpus" if machine.wants_gpus else ""]
            asked += [mount.split(":")[0] for mount in cluster.job.mounts]
            detailing = beside.submit(_details, node, USUAL_ROOT, *asked)
            docker, docker_error = _docker(node, cluster)
            details = detailing.result()
            if docker and docker.root != USUAL_ROOT:  # only its disk is still unknown
                disks = _details(node, docker.root).disks
                details = dataclasses.replace(details, disks=disks)
        return dataclasses.replace(
            machine,
            facts=asking.result(),
            details=details,
            docker=docker,
            docker_error=docker_error,
        )
    except DdpctlError as error:
        return dataclasses.replace(machine, ssh_error=str(error))


def _docker(node: Node, cluster: Cluster) -> tuple[Docker | None, str | None]:
    if cluster.job.engine != "docker":
        return None, None
    from launcher.engines import images
    from launcher.engines.engine_info import engine_info, run_of_containers

    try:
        info = engine_info(node)
        image = images.inspect(node, cluster.job.image)
        nodes = engine_of(node, "docker").list()
        return docker_of(info, image, nodes, run_of_containers(node)), None
    except (DockerUnavailable, CommandTimeout) as error:
        return None, str(error)


def _details(node: Node, docker_root: str, *asked: str) -> Details:
    """asked: what else details.SCRIPT takes."""
    argv = ["sh", "-c", details_module.SCRIPT, "sh", docker_root, *asked]
    done = node.run(argv, timeout=60.0)
    try:
        return details_module.parse(done.stdout.decode(errors="replace"))
    except ValueError as error:
        raise CommandFailed(
            f"{node.name}: {error}; the SSH user must be able to run `sh` there"
        ) from None


def image_here(cluster: Cluster) -> Image | None:
    """The image as this machine's own engine has it, if there is one."""
    if cluster.job.engine != "docker":
        return None
    from launcher.engines import images

    node = Node(Host("local"))
    try:
        return images.inspect(node, cluster.job.image)
    except DdpctlError:
        return None
    finally:
        node.close()
