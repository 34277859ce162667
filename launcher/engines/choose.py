"""Choose the engine for a node. Only this file refers to engines by name.

Each engine is imported on first use, because the Docker SDK takes a while to load.
"""

from __future__ import annotations

import contextlib
from importlib import import_module
from typing import TYPE_CHECKING, cast

from ..errors import CommandFailed, DockerUnavailable, UsageError
from ..hosts import Host
from ..plan.plan import EngineTraits
from ..ssh.host_connection import HostConnection, connected
from ..text import quoted
from .base import Engine
from .status import NodeStatus

if TYPE_CHECKING:
    from .engine_info import ImageInfo
    from .image_store import ImageStore

ENGINES = {  # module:class
    "docker": ".docker:Docker",
    "process": ".process:Processes",
    "apptainer": ".apptainer:Apptainer",
}


def _engine(name: str) -> type[Engine]:
    if name not in ENGINES:
        raise UsageError(f"no engine is called {quoted(name)}", f"use one of {', '.join(ENGINES)}")
    module, _, engine = ENGINES[name].partition(":")
    return cast(type[Engine], getattr(import_module(module, __package__), engine))


def engine_traits(name: str) -> EngineTraits:
    return _engine(name).traits


def engine_of(connection: HostConnection, name: str) -> Engine:
    return _engine(name)(connection)


def images_of(connection: HostConnection) -> ImageStore:
    """Return the image store of the host's Docker or Podman."""
    from .image_store import ImageStore

    return ImageStore(connection)


def image_here(name: str) -> ImageInfo | None:
    """Return the image `name` on this machine; None if there is no such image or no engine."""
    with (
        contextlib.suppress(DockerUnavailable, CommandFailed),
        connected([Host("local")]) as [local],
    ):
        return images_of(local).inspect(name)
    return None


def engines_on(connection: HostConnection, name: str) -> list[Engine]:
    """Return the engines that may have nodes of runs on this host.

    These are `name` and, on `local`, also the process engine if `name` keeps containers.
    """
    own = engine_of(connection, name)
    if connection.host.is_local and own.traits.keeps_containers:
        return [own, engine_of(connection, "process")]
    return [own]


def nodes_on(connection: HostConnection, name: str, run_id: str | None = None) -> list[NodeStatus]:
    """Return the nodes and tickets of all runs on this host, or of `run_id`, in any state."""
    statuses = [s for engine in engines_on(connection, name) for s in engine.nodes(run_id)]
    # a host, which is not trusted, may list other runs
    return [s for s in statuses if run_id in (None, s.run_id)]


def claims_on(connection: HostConnection, name: str) -> list[NodeStatus]:
    """Return the claims of all runs on this host; see `Engine.claims`."""
    return [status for engine in engines_on(connection, name) for status in engine.claims()]


def installed_engines(connection: HostConnection, name: str) -> list[Engine]:
    """Return the engine `name` and, if it is installed, the engine of the other kind on this host.

    Processes and Apptainer are of one kind: each lists and stops the other's nodes.
    """
    own = engine_of(connection, name)
    if own.traits.keeps_containers:
        return [own, engine_of(connection, "process")]
    docker = engine_of(connection, "docker")
    return [*([docker] if docker.is_installed() else []), own]
