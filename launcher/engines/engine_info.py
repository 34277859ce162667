"""What a container engine reports about itself and an image, parsed from its API's answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .capabilities import Capabilities, parse_capabilities
from .status import NodeStatus


@dataclass(frozen=True)
class ImageInfo:
    """Engines with different image stores give one image different ids.

    `layers` (the diff ids) and `fingerprint` (layers and configuration) are the same on all of them.
    """

    id: str
    layers: tuple[str, ...]
    architecture: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    repo_digests: tuple[str, ...] = ()
    fingerprint: str = ""

    def same_as(self, other: ImageInfo) -> bool:
        return (
            self.id == other.id != ""
            or (bool(self.layers) and self.fingerprint == other.fingerprint)
            or bool(set(self.repo_digests) & set(other.repo_digests))
        )


@dataclass(frozen=True)
class EngineInfo:
    """image: the one that was asked for, if the engine has it."""

    version: str
    storage: str
    cgroup_driver: str
    root: str
    runtimes: frozenset[str] = frozenset()
    can: Capabilities = field(default_factory=Capabilities)
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
        runtimes=frozenset(_mapping(about.get("Runtimes"))),
        can=parse_capabilities(about),
        image=image,
        nodes=nodes,
        containers=containers,
    )


def parse_image(inspected: Mapping[str, Any]) -> ImageInfo:
    """inspected: the answer to /images/NAME/json."""
    config, rootfs = (_mapping(inspected.get(key)) for key in ("Config", "RootFS"))
    layers = _texts(rootfs.get("Layers"))
    architecture = str(inspected.get("Architecture") or "")
    # Engines of different ages omit empty values or write null.
    runs = {key: config.get(key) or None for key in ("Cmd", "Entrypoint", "Env", "User", "Labels")}
    identity = [layers, runs, config.get("WorkingDir") or "", architecture]
    return ImageInfo(
        id=str(inspected.get("Id") or ""),
        layers=layers,
        architecture=architecture,
        env=dict(entry.split("=", 1) for entry in _texts(config.get("Env")) if "=" in entry),
        repo_digests=_texts(inspected.get("RepoDigests")),
        fingerprint=json.dumps(identity, sort_keys=True),
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(value: object) -> tuple[str, ...]:
    return tuple(str(text) for text in value) if isinstance(value, list) else ()
