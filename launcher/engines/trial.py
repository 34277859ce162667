"""A container that says something and goes, of the kind that a launch starts."""

from __future__ import annotations

import contextlib

import docker.errors
import requests.exceptions

from launcher.engines.docker import _create_arguments, _failed
from launcher.engines.docker_client import docker_of
from launcher.errors import CommandTimeout
from launcher.hosts import Job
from launcher.plan.plan import Container
from launcher.ssh.node import Node


def run_trial(node: Node, container: Container, script: str, argument: str, *, timeout: int) -> str:
    """What `script argument` prints under the image's python3. Nothing of it stays on the host.

    CommandFailed when the engine will not have it, CommandTimeout when it does not end.
    """
    client = docker_of(node)
    api = client.api
    spec = _create_arguments(container, {}, client.about.get("SecurityOptions") or [])
    command = ["python3", "-c", script]
    spec = {**spec, "entrypoint": command, "command": [argument], "working_dir": "/"}
    try:
        api.create_container(**spec)
        try:
            api.start(container.name)
            api.wait(container.name, timeout=timeout)
            return bytes(api.logs(container.name, stdout=True, stderr=True)).decode(
                errors="replace"
            )
        finally:
            with contextlib.suppress(docker.errors.APIError):
                api.remove_container(container.name, force=True, v=True)
    except docker.errors.APIError as error:
        raise _failed(node.name, "start a container for trial", error) from None
    except requests.exceptions.RequestException:
        raise CommandTimeout(
            f"{node.name}: a container for trial did not end within {timeout:g} s; "
            "look at `docker ps` and the load there"
        ) from None


def python_in_image(job: Job) -> list[str]:
    """A command for a host that runs python3 in the job's image, with the host's network.

    It ends at once where the image is missing. Empty for a job that has no image.
    """
    if job.engine != "docker":
        return []
    script = (
        'docker image inspect "$0" >/dev/null 2>&1 || exit; '
        'exec docker run --rm -i --network host --entrypoint python3 "$0" "$@"'
    )
    return ["sh", "-c", script, job.image]
