"""The container engine: it answers, is recent enough, stores layers well and keeps containers running."""

from __future__ import annotations

from collections.abc import Iterator

from .findings import Finding, failure, split, warning
from .inventory import Inventory
from .machine import Machine

SLOW_STORAGE = ("vfs", "devicemapper")


def check_docker(machine: Machine, _: Inventory) -> Iterator[Finding]:
    if machine.engine_error:
        what, remedy = split(machine.engine_error, machine.hosts[0].name)
        yield failure(machine.name, "docker", what, remedy)
    if machine.engine is None:
        return
    can = machine.engine.can
    if can.version and can.version < can.oldest:
        what = f"{can.product} {machine.engine.version} is too old"
        yield failure(machine.name, "docker", what, f"install {can.upgrade} or newer there")
    if machine.engine.storage in SLOW_STORAGE:
        what = f"{can.product}'s storage is {machine.engine.storage}, which copies every layer"
        remedy = f"set overlay2 or fuse-overlayfs in {can.storage_file} there"
        yield warning(machine.name, "docker", what, remedy)


def check_rootless(machine: Machine, _: Inventory) -> Iterator[Finding]:
    """What a rootless Podman needs of the host: ids to map, and a session that outlives the login."""
    if machine.engine is None or not machine.engine.can.needs_linger:
        return
    user = machine.facts.user
    if not machine.details.subuids:
        what = f"{user} has no ids in /etc/subuid, so Podman cannot unpack images"
        remedy = (
            f"run `sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}`, "
            "then `podman system migrate` there"
        )
        yield failure(machine.name, "docker", what, remedy)
    if not machine.details.lingers:
        what = f"Podman's containers end when {user} logs out, and a run with them"
        remedy = f"run `sudo loginctl enable-linger {user}` there"
        yield failure(machine.name, "docker", what, remedy)


CHECKS = (check_docker, check_rootless)
