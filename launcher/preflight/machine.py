"""What was seen of one machine; everything that a check may look at. Pure values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.engines.base import NodeStatus
from launcher.engines.images import Image
from launcher.facts.hardware import Details
from launcher.facts.script import Facts
from launcher.hosts import Host


@dataclass(frozen=True)
class Docker:
    version: str
    storage: str
    cgroup_driver: str
    root: str
    runtimes: frozenset[str] = frozenset()
    security: tuple[str, ...] = ()
    image: Image | None = None
    nodes: tuple[NodeStatus, ...] = ()  # ddpctl's containers there, whatever their state
    containers: Mapping[str, str] = field(default_factory=dict)  # container id -> run id

    @property
    def is_rootless(self) -> bool:
        return any("rootless" in option for option in self.security)


@dataclass(frozen=True)
class Machine:
    """One machine of the cluster with the nodes on it. What could not be seen is None."""

    name: str
    ranks: tuple[int, ...]
    hosts: tuple[Host, ...]
    facts: Facts | None = None
    details: Details | None = None
    docker: Docker | None = None
    ssh_error: str | None = None
    docker_error: str | None = None

    @property
    def wants_gpus(self) -> bool:
        return any(host.gpus != 0 for host in self.hosts)

    def shares_network_with(self, other: Machine) -> bool:
        """Both are names of one machine: what one reaches, the other does."""
        if self is other:
            return True
        one, two = ((m.details.network if m.details else "") for m in (self, other))
        return one != "" and one == two


def docker_of(
    info: Mapping[str, Any],
    image: Image | None,
    nodes: Sequence[NodeStatus],
    containers: Mapping[str, str],
) -> Docker:
    """From the Engine API's answer to /info."""
    return Docker(
        version=str(info.get("ServerVersion", "")),
        storage=str(info.get("Driver", "")),
        cgroup_driver=str(info.get("CgroupDriver", "")),
        root=str(info.get("DockerRootDir", "")),
        runtimes=frozenset(info.get("Runtimes") or {}),
        security=tuple(info.get("SecurityOptions") or ()),
        image=image,
        nodes=tuple(nodes),
        containers=dict(containers),
    )


def common(values: Sequence[Any]) -> Any:
    """The most frequent value, the first of them in a draw."""
    return max(dict.fromkeys(values), key=list(values).count)
