"""What the engine of one host does in its own way, read once from its answer to /info.

Docker and Podman serve the same API. Every difference that ddpctl must know of is a field here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

PODMAN_WITH_GPUS = (5, 4)  # earlier ones accept a request for GPUs and ignore it


@dataclass(frozen=True)
class Capabilities:
    """The defaults are those of a rootful Docker Engine."""

    product: Literal["Docker", "Podman"] = "Docker"
    version: tuple[int, ...] = ()
    rootless: bool = False  # root in a container is the SSH user, whose own uid is another's there
    relabels: bool = False  # SELinux: containers may use only folders that were relabelled
    gpus: Literal["toolkit", "cdi", "none"] = "toolkit"  # how NVIDIA GPUs are asked for
    keeps_groups: bool = False  # a container can keep the SSH user's groups, and have no others
    creates_missing_sources: bool = False  # of every mount, where Docker refuses
    knows_compressed_layers: bool = True  # else archives must name missing layers by diff id
    pushes_without_tls: bool = True  # to a registry on loopback
    oldest: tuple[int, ...] = (19, 3)  # the first that can be asked for GPUs through its API
    upgrade: str = "Docker Engine 20.10"  # what to install instead of an older one
    storage_file: str = "/etc/docker/daemon.json"  # where its storage driver is set
    needs_linger: bool = False  # without it, containers end when the SSH user logs out


def parse_capabilities(about: Mapping[str, Any]) -> Capabilities:
    """about: the answer to /info."""
    listed = about.get("SecurityOptions")
    security = " ".join(map(str, listed)) if isinstance(listed, list) else ""
    version = tuple(map(int, re.findall(r"[0-9]{1,6}", str(about.get("ServerVersion")))[:2]))
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
