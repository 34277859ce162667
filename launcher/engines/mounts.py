"""Folders of a host that containers of runs mount."""

from __future__ import annotations

from ..ssh.node import Node
from .command import SEARCH
from .docker import RUN_LABEL
from .docker_client import docker_of


def mounted_by_runs(node: Node, *, engine_required: bool) -> frozenset[str]:
    """Host paths that containers of runs mount, whether the containers run or not.

    DockerUnavailable if that cannot be seen. A host without an engine has no containers, which is fine
    unless `engine_required`.
    """
    if not engine_required and node.script(f"{SEARCH} command -v $engine").code != 0:
        return frozenset()
    rows = docker_of(node).api.containers(all=True, filters={"label": [RUN_LABEL]})
    return frozenset(str(m.get("Source", "")) for row in rows for m in row.get("Mounts") or ())
