"""Docker: the engine answers, is recent enough and stores layers well."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .findings import Finding, failure, split, warning
from .inventory import Inventory
from .machine import Machine

OLDEST_DOCKER = (19, 3)  # the first that can be asked for GPUs through its API
SLOW_STORAGE = ("vfs", "devicemapper")


def check_docker(machine: Machine, _: Inventory) -> Iterator[Finding]:
    if machine.engine_error:
        what, remedy = split(machine.engine_error, machine.hosts[0].name)
        yield failure(machine.name, "docker", what, remedy)
    if machine.engine is None:
        return
    version = tuple(int(part) for part in re.findall(r"\d+", machine.engine.version)[:2])
    if version and version < OLDEST_DOCKER:
        what = f"Docker {machine.engine.version} is too old"
        yield failure(machine.name, "docker", what, "install Docker Engine 20.10 or newer there")
    if machine.engine.storage in SLOW_STORAGE:
        what = f"Docker's storage driver is {machine.engine.storage}, which copies every layer"
        remedy = "set overlay2 or fuse-overlayfs in /etc/docker/daemon.json there"
        yield warning(machine.name, "docker", what, remedy)


CHECKS = (check_docker,)
