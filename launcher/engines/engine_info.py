"""Facts about a container engine and an image, parsed from answers of the engine's API.

Docker and Podman serve the same API. Every difference that matters to ddpctl is a field of
Capabilities.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .status import array, mapping

WRITE_CDI_SPEC = "on that host, run `sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`"
PODMAN_WITH_GPUS = (5, 4)  # earlier versions accept GPU requests but ignore them


@dataclass(frozen=True)
class ImageInfo:
    """An image on one host.

    `id` depends on the engine's image store. `layers` (diff ids, lowest first) and `fingerprint`
    (layers and configuration) are the same on all engines.
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
class Capabilities:
    """The differences between engines. The defaults describe a rootful Docker Engine."""

    product: Literal["Docker", "Podman"] = "Docker"
    version: tuple[int, ...] = ()
    rootless: bool = False  # root in a container is the SSH user; its other uids are subordinate
    relabels: bool = False  # whether SELinux lets containers use only relabeled folders
    gpus: Literal["toolkit", "cdi", "none"] = "toolkit"  # how to request NVIDIA GPUs
    keeps_groups: bool = False  # a container can have the SSH user's groups, but no others
    creates_missing_sources: bool = False  # for all mounts; Docker fails instead
    knows_compressed_layers: bool = True  # otherwise, archives must name omitted layers by diff id
    pushes_without_tls: bool = True  # to a registry on loopback
    oldest: tuple[int, ...] = (19, 3)  # the oldest version whose API accepts GPU requests
    upgrade: str = "Docker Engine 20.10"  # what to install in place of an older version
    storage_file: str = "/etc/docker/daemon.json"  # the file that sets the storage driver
    needs_linger: bool = False  # without lingering, containers end when the SSH user logs out


@dataclass(frozen=True)
class EngineInfo:
    """Facts about an engine. image: the requested image, or None if the engine does not have it."""

    version: str
    storage: str
    cgroup_driver: str
    root: str
    runtimes: frozenset[str] = frozenset()
    can: Capabilities = field(default_factory=Capabilities)
    image: ImageInfo | None = None


def parse_engine(about: Mapping[str, Any], image: ImageInfo | None) -> EngineInfo:
    """Parse facts about the engine. Missing ones become empty. about: its answer to /info."""
    return EngineInfo(
        version=str(about.get("ServerVersion", "")),
        storage=str(about.get("Driver", "")),
        cgroup_driver=str(about.get("CgroupDriver", "")),
        root=str(about.get("DockerRootDir", "")),
        runtimes=frozenset(mapping(about.get("Runtimes"))),
        can=parse_capabilities(about),
        image=image,
    )


def parse_capabilities(about: Mapping[str, Any]) -> Capabilities:
    """Derive the engine's capabilities. about: its answer to /info, in which fields may be missing."""
    security = " ".join(_texts(about.get("SecurityOptions")))
    version = tuple(map(int, re.findall(r"[0-9]{1,6}", str(about.get("ServerVersion"))[:100])[:2]))
    rootless, relabels = "rootless" in security, "selinux" in security
    if "BuildahVersion" not in about:
        return Capabilities("Docker", version, rootless, relabels)
    return Capabilities(
        "Podman",
        version,
        rootless,
        relabels,
        gpus="cdi" if version >= PODMAN_WITH_GPUS else "none",
        keeps_groups=rootless,
        creates_missing_sources=True,
        knows_compressed_layers=False,
        pushes_without_tls=False,
        oldest=(4, 9),
        upgrade="Podman 4.9 (5.4 for GPUs)",
        storage_file="/etc/containers/storage.conf",
        needs_linger=rootless,
    )


def parse_image(inspected: Mapping[str, Any]) -> ImageInfo:
    """Parse facts about an image. Missing ones become empty.

    inspected: the engine's answer to /images/NAME/json.
    """
    config, rootfs = (mapping(inspected.get(key)) for key in ("Config", "RootFS"))
    layers = _texts(rootfs.get("Layers"))
    architecture = str(inspected.get("Architecture") or "")
    # Some versions of the engines omit empty values, and others write null.
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


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, array(value)))
