"""What a container engine says about itself, parsed from its API's answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import docker.errors
import requests.exceptions

from launcher.engines.base import NodeStatus
from launcher.engines.docker import Containers
from launcher.engines.docker_client import docker_of
from launcher.errors import DockerUnavailable
from launcher.plan.plan import LABEL
from launcher.ssh.node import Node


@dataclass(frozen=True)
class ImageInfo:
    """layers identify the content on every kind of image store; ids do not."""

    id: str
    layers: tuple[str, ...]
    architecture: str
    env: Mapping[str, str] = field(default_factory=dict)
    inspected: Mapping[str, Any] = field(default_factory=dict, repr=False)  # the whole answer


@dataclass(frozen=True)
class EngineInfo:
    """image: the one that was asked for, if the engine has it."""

    version: str
    storage: str
    cgroup_driver: str
    root: str
    runtimes: frozenset[str] = frozenset()
    is_rootless: bool = False
    image: ImageInfo | None = None
    nodes: tuple[NodeStatus, ...] = ()  # ddpctl's containers there, in any state
    containers: Mapping[str, str] = field(default_factory=dict)  # container id -> run id


def engine_info(node: Node, image: str) -> EngineInfo:
    """Raises DockerUnavailable or CommandTimeout, in one line."""
    about = _asked(node, lambda client: client.about)
    label = f"{LABEL}.run-id"
    rows = _asked(node, lambda client: client.api.containers(filters={"label": [label]}))
    return EngineInfo(
        version=str(about.get("ServerVersion", "")),
        storage=str(about.get("Driver", "")),
        cgroup_driver=str(about.get("CgroupDriver", "")),
        root=str(about.get("DockerRootDir", "")),
        runtimes=frozenset(about.get("Runtimes") or {}),
        is_rootless=any("rootless" in option for option in about.get("SecurityOptions") or ()),
        image=image_info(node, image),
        nodes=tuple(Containers(node).list()),
        containers={row["Id"]: (row.get("Labels") or {}).get(label, "") for row in rows},
    )


def image_info(node: Node, image: str) -> ImageInfo | None:
    """None where the engine does not have the image."""
    try:
        inspected = dict(_asked(node, lambda client: client.api.inspect_image(image)))
    except _Missing:
        return None
    environment = (inspected.get("Config") or {}).get("Env") or []
    return ImageInfo(
        id=str(inspected.get("Id", "")),
        layers=tuple((inspected.get("RootFS") or {}).get("Layers") or ()),
        architecture=str(inspected.get("Architecture", "")),
        env=dict(entry.split("=", 1) for entry in environment if "=" in entry),
        inspected=inspected,
    )


class _Missing(DockerUnavailable):
    pass


def _asked(node: Node, ask: Callable[[Any], Any]) -> Any:
    try:
        return ask(docker_of(node))
    except docker.errors.NotFound as error:
        raise _Missing(f"{node.name}: {error.explanation or error}") from None
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        reason = " ".join(str(getattr(error, "explanation", None) or error).split())
        raise DockerUnavailable(
            f"{node.name}: its Docker Engine answers with an error: {reason}; "
            "look at `journalctl -u docker` there"
        ) from None
