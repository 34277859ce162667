"""Handles of an attempt's nodes, for code that acts on them, whether or not they are running."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..plan.plan import Place
from ..ssh.host_connection import HostConnection
from .base import Engine


@dataclass(frozen=True)
class NodeHandle:
    """A node's connection, its engine, and its place on the host."""

    connection: HostConnection
    engine: Engine
    place: Place


@dataclass(frozen=True)
class AttemptHandle:
    """The handles of all nodes of an attempt, in the order of their node ranks."""

    members: tuple[NodeHandle, ...]

    @property
    def number(self) -> int:
        return self.members[0].place.attempt

    @property
    def connections(self) -> Sequence[HostConnection]:
        return [member.connection for member in self.members]

    @cached_property
    def by_connection(self) -> Mapping[HostConnection, NodeHandle]:
        return {member.connection: member for member in self.members}
