"""A running attempt: its nodes with what is needed to act on each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from launcher.engines.base import Engine
from launcher.plan.plan import Place
from launcher.ssh.node import Node


@dataclass(frozen=True)
class RunningAttempt:
    """Nodes, their engines and their places on the hosts; `nodes` and `places` in rank order."""

    nodes: Sequence[Node]
    engines: dict[Node, Engine]
    places: Sequence[Place]
