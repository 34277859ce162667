"""What a container engine reports about itself and an image, parsed from its API's answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from launcher.engines.base import NodeStatus


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


def parse_engine(
    about: Mapping[str, Any],
    image: ImageInfo | None,
    nodes: tuple[NodeStatus, ...],
    containers: Mapping[str, str],
) -> EngineInfo:
    """about: the answer to /info."""
    return EngineInfo(
        version=str(about.get("ServerVersion", "")),
        storage=str(about.get("Driver", "")),
        cgroup_driver=str(about.get("CgroupDriver", "")),
        root=str(about.get("DockerRootDir", "")),
        runtimes=frozenset(about.get("Runtimes") or {}),
        is_rootless=any("rootless" in option for option in about.get("SecurityOptions") or ()),
        image=image,
        nodes=nodes,
        containers=containers,
    )


def parse_image(inspected: Mapping[str, Any]) -> ImageInfo:
    environment = (inspected.get("Config") or {}).get("Env") or []
    return ImageInfo(
        id=str(inspected.get("Id", "")),
        layers=tuple((inspected.get("RootFS") or {}).get("Layers") or ()),
        architecture=str(inspected.get("Architecture", "")),
        env=dict(entry.split("=", 1) for entry in environment if "=" in entry),
        inspected=inspected,
    )
