"""Choose the engine for a node. Only this file knows the engines by name.

Each engine is imported on first use: the Docker SDK takes a while to load.
"""

from importlib import import_module
from typing import cast

from ..errors import UsageError
from ..plan.plan import EngineTraits
from ..ssh.node import Node
from ..text import quoted
from .base import Engine, ImageStore

ENGINES = {"docker": ".docker:Docker", "process": ".process:Processes"}  # module:class


def _engine(name: str) -> type[Engine]:
    if name not in ENGINES:
        raise UsageError(f"no engine is called {quoted(name)}", f"use {' or '.join(ENGINES)}")
    module, _, engine = ENGINES[name].partition(":")
    return cast(type[Engine], getattr(import_module(module, __package__), engine))


def engine_traits(name: str) -> EngineTraits:
    return _engine(name).traits


def engine_of(node: Node, name: str) -> Engine:
    return _engine(name)(node)


def images_of(node: Node, name: str) -> ImageStore:
    """Return the images of the engine. Raises UsageError if it has none."""
    images = engine_of(node, name).images
    if images is None:
        raise UsageError(f"engine: {name} uses no images", "set job.engine: docker")
    return images


def engines_on(node: Node, name: str) -> list[Engine]:
    """Return the engines that may have nodes of runs on this host: `name` and local processes."""
    local = node.host.is_local
    return [
        engine(node)
        for engine in map(_engine, ENGINES)
        if engine.traits.name == name or (local and not engine.traits.in_container)
    ]


def installed_engines(node: Node, name: str) -> list[Engine]:
    """Return the engine `name` and every other that is installed on this host."""
    engines = [engine(node) for engine in map(_engine, ENGINES)]
    return [each for each in engines if each.traits.name == name or each.is_installed()]
