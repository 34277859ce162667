"""Examine one machine: its facts, its details and its engine. Nothing is changed there."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from launcher.engines.choose import has_images
from launcher.engines.engine_info import EngineInfo, ImageInfo, engine_info, image_info
from launcher.errors import CommandFailed, CommandTimeout, DdpctlError, DockerUnavailable
from launcher.facts import hardware
from launcher.facts.gather import gather_one
from launcher.facts.hardware import Details
from launcher.hosts import Host, Job
from launcher.preflight.machine import Machine, Unseen
from launcher.ssh.node import Node

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
    is_first = 0 in ranks
    try:
        node.connect()
        with ThreadPoolExecutor(3) as pool:
            pool.submit(beside, nodes[0])
            facts = pool.submit(gather_one, node, ports=is_first)
            port = str(job.master_port) if is_first and job.master_port != "auto" else ""
            gpus = "gpus" if any(host.gpus != 0 for host in hosts) else ""
            asked = [port, gpus, *(mount.split(":")[0] for mount in job.mounts)]
            details = pool.submit(_details, node, USUAL_ROOT, *asked)
            engine, engine_error = _engine(node, job)
            found = details.result()
            if engine and engine.root != USUAL_ROOT:
                found = dataclasses.replace(found, disks=_details(node, engine.root).disks)
        return Machine(name, tuple(ranks), hosts, facts.result(), found, engine, engine_error)
    except DdpctlError as error:
        return Unseen(name, tuple(ranks), hosts, str(error))


def _engine(node: Node, job: Job) -> tuple[EngineInfo | None, str | None]:
    """The engine, or why it does not answer; neither where the job needs none."""
    try:
        return (engine_info(node, job.image) if has_images(job) else None), None
    except (DockerUnavailable, CommandTimeout) as error:
        return None, str(error)


def _details(node: Node, *args: str) -> Details:
    """args: those of hardware.SCRIPT."""
    done = node.script(hardware.SCRIPT, *args, timeout=60.0)
    try:
        return hardware.parse(done.stdout.decode(errors="replace"))
    except ValueError as error:
        raise CommandFailed(
            f"{node.name}: {error}; the SSH user must be able to run `sh` there"
        ) from None


def image_here(job: Job) -> ImageInfo | None:
    """The job's image as this machine's engine has it, if it does."""
    with contextlib.suppress(DdpctlError), contextlib.closing(Node(Host("local"))) as node:
        return image_info(node, job.image) if has_images(job) else None
    return None
