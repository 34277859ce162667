"""Examine one machine: its facts and its engine. Nothing is changed there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ..engines.choose import container_engine
from ..engines.engine_info import EngineInfo, ImageInfo
from ..errors import CommandTimeout, DdpctlError, DockerUnavailable
from ..facts.gather import gather_one
from ..hosts import Host, Job
from ..ssh.node import Node
from .machine import Machine, Unseen

USUAL_ROOT = "/var/lib/docker"  # assumed, so that asking the engine for it holds nothing up


def examine(
    name: str,
    ranks: Sequence[int],
    nodes: Sequence[Node],
    job: Job,
    beside: Callable[[Node], None],
) -> Machine | Unseen:
    """The machine that these ranks share, each with its Node. `beside` runs at the same time."""
    hosts = tuple(node.host for node in nodes)
    node = next((node for node in nodes if node.host.gpus != 0), nodes[0])
    first = 0 in ranks
    port = str(job.master_port) if first and job.master_port != "auto" else ""
    folders = [job.metrics_dir] if job.metrics_dir else []
    check = [port, *(mount.split(":")[0] for mount in job.mounts), *folders]
    try:
        node.connect()
        with ThreadPoolExecutor(2) as pool:
            pool.submit(beside, nodes[0])
            asked = pool.submit(gather_one, node, ports=first, check=[USUAL_ROOT, *check])
            engine, engine_error = _engine(node, job)
            facts = asked.result()
            if engine and engine.root != USUAL_ROOT:
                facts = gather_one(node, ports=first, check=[engine.root, *check])
        return Machine(name, tuple(ranks), hosts, facts, engine, engine_error)
    except DdpctlError as error:
        return Unseen(name, tuple(ranks), hosts, str(error))


def _engine(node: Node, job: Job) -> tuple[EngineInfo | None, str | None]:
    """The engine, or why it does not answer; neither where the job needs none."""
    engine = container_engine(node, job.engine)
    try:
        return (engine.engine_info(job.image) if engine else None), None
    except (DockerUnavailable, CommandTimeout) as error:
        return None, str(error)


def image_here(job: Job) -> ImageInfo | None:
    """The job's image as this machine's engine has it, if it does."""
    with contextlib.suppress(DdpctlError), contextlib.closing(Node(Host("local"))) as node:
        engine = container_engine(node, job.engine)
        return engine.image_info(job.image) if engine else None
    return None
