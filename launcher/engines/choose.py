"""Which engine serves a node. The only place that knows the engines' names."""

from __future__ import annotations

from launcher.engines.base import Engine
from launcher.engines.process import Processes
from launcher.hosts import Cluster, Job
from launcher.ssh.node import Node


def engine_of(node: Node, name: str) -> Engine:
    if name == "process":
        return Processes(node.name)
    from launcher.engines.docker import Containers

    return Containers(node)


def engines(node: Node, cluster: Cluster) -> list[Engine]:
    """A local host may hold nodes of both engines."""
    by_name: list[Engine] = []
    if node.host.is_local:
        by_name.append(Processes(node.name))
    if cluster.job.engine == "docker":
        by_name.append(engine_of(node, "docker"))
    return by_name


def has_images(job: Job) -> bool:
    """Whether the job's engine runs containers of an image."""
    return job.engine == "docker"
