"""SSH and Docker: the host is there, and its engine serves."""

from __future__ import annotations

import re

from launcher.preflight.findings import Finding, failure, warning
from launcher.preflight.machine import Machine

OLDEST_DOCKER = (19, 3)  # the first that is asked for GPUs through its API
SLOW_STORAGE = ("vfs", "devicemapper")


def check_ssh(machine: Machine) -> list[Finding]:
    if machine.ssh_error is None:
        return []
    return [failure(machine.name, "ssh", *split(machine.ssh_error, machine.hosts[0].name))]


def check_docker(machine: Machine) -> list[Finding]:
    if machine.docker_error is not None:
        return [
            failure(machine.name, "docker", *split(machine.docker_error, machine.hosts[0].name))
        ]
    docker = machine.docker
    if docker is None:
        return []
    found = []
    version = tuple(int(part) for part in re.findall(r"\d+", docker.version)[:2])
    if version and version < OLDEST_DOCKER:
        what = f"Docker {docker.version} is too old"
        found.append(
            failure(machine.name, "docker", what, "install Docker Engine 20.10 or newer there")
        )
    if docker.storage in SLOW_STORAGE:
        what = f"Docker's storage driver is {docker.storage}, which copies every layer whole"
        remedy = "set overlay2 or fuse-overlayfs in /etc/docker/daemon.json there"
        found.append(warning(machine.name, "docker", what, remedy))
    return found


def split(message: str, host: str) -> tuple[str, str]:
    """`HOST: WHAT; REMEDY`, the one line of an error, as what and remedy."""
    text = " ".join(message.split()).removeprefix(f"{host}: ")
    what, _, remedy = text.rpartition("; ")
    return (what, remedy) if what else (text, "look at the host")
