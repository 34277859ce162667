"""All that the checks may look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..engines.engine_info import ImageInfo
from ..hosts import Cluster
from .machine import Machine
from .reach_routes import Reach, Route


@dataclass(frozen=True)
class Inventory:
    """The machines that were seen. here: the job's image as the launching machine has it."""

    cluster: Cluster
    machines: Sequence[Machine]
    here: ImageInfo | None = None
    reach: Reach = field(default_factory=Reach)
    waits: bool = False  # for what other runs have

    def route(self, machine: Machine) -> Route:
        return self.reach.routes.get(machine.rank, Route())
