"""The nodes of an attempt, each with its connection, its engine and its place on the host."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..plan.plan import Place
from ..ssh.host_connection import HostConnection
from .base import Engine


@dataclass(frozen=True)
class RunningNode:
    """A node of an attempt, and what is needed to control it."""

    connection: HostConnection
    engine: Engine
    place: Place


@dataclass(frozen=True)
class RunningAttempt:
    """All nodes of an attempt, in the order of their node ranks."""

    members: tuple[RunningNode, ...]

    @property
    def number(self) -> int:
        return self.members[0].place.attempt

    @property
    def connections(self) -> Sequence[HostConnection]:
        return [member.connection for member in self.members]

    @cached_property
    def by_connection(self) -> Mapping[HostConnection, RunningNode]:
        return {member.connection: member for member in self.members}
