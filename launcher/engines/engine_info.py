"""What a Docker Engine says about itself, as its API's own answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from launcher.engines.docker_client import docker_of
from launcher.errors import DockerUnavailable
from launcher.plan.plan import LABEL
from launcher.ssh.node import Node


def engine_info(node: Node) -> dict[str, Any]:
    """The engine's /info. DockerUnavailable in one line."""
    return dict(_asked(node, lambda client: client.about))


def image_info(node: Node, image: str) -> dict[str, Any] | None:
    """What `docker image inspect` prints, or None where the engine does not have it."""
    try:
        return dict(_asked(node, lambda client: client.api.inspect_image(image)))
    except _NotThere:
        return None


def run_of_containers(node: Node) -> dict[str, str]:
    """Container id -> run id, for every container of ddpctl that is not gone."""
    label = f"{LABEL}.run-id"
    rows = _asked(node, lambda client: client.api.containers(filters={"label": [label]}))
    return {row["Id"]: (row.get("Labels") or {}).get(label, "") for row in rows}


class _NotThere(DockerUnavailable):
    pass


def _asked(node: Node, ask: Callable[[Any], Any]) -> Any:
    # It dials the engine while the SDK loads, so nothing here may load that before.
    client = docker_of(node)
    import docker.errors
    import requests.exceptions

    try:
        return ask(client)
    except docker.errors.NotFound as error:
        raise _NotThere(f"{node.name}: {error.explanation or error}") from None
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        said = " ".join(str(getattr(error, "explanation", None) or error).split())
        raise DockerUnavailable(
            f"{node.name}: its Docker Engine answers with an error: {said}; "
            "look at `journalctl -u docker` there"
        ) from None
