"""What an engine can do for one node of a run: containers of a Docker Engine, or local processes.

`launcher.engines.docker` and `launcher.engines.process` are the two engines. Both keep the same folders on
the host and start the same supervisor; only what holds it differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from launcher.plan.plan import NodePlan, Place

GONE = ("exited", "dead", "created")  # states in which nothing of ours runs


@dataclass(frozen=True)
class NodeStatus:
    """One node of one attempt, as the engine of its host sees it now."""

    run_id: str
    name: str  # of the run, "" without one
    attempt: int
    node_rank: int
    nnodes: int
    owner: str
    host: str
    handle: str  # container name, or pid; what stop and remove are given
    state: str  # created running paused restarting exited dead
    exit_code: int | None  # None while it runs, and when nobody can know it
    oom_killed: bool = False
    started: float | None = None  # unix seconds, the host's clock
    ended: float | None = None
    error: str = ""
    image: str = ""
    master_port: str = ""

    @property
    def alive(self) -> bool:
        return self.state not in GONE


class Engine(Protocol):
    def create(self, node: NodePlan, secrets: Mapping[str, str]) -> None:
        """Makes the container, not yet running. `secrets` join its environment and are kept nowhere."""

    def start(self, node: NodePlan) -> None: ...

    def wait(self, place: Place) -> NodeStatus:
        """Blocks until the node's supervisor has gone; the status tells how."""

    def list(self, run_id: str | None = None) -> list[NodeStatus]:
        """All nodes of runs on this host, whatever their state; of one run if it is named."""

    def stop(self, status: NodeStatus, timeout: float) -> None:
        """SIGTERM, `timeout` seconds, SIGKILL. Fine on a node that has stopped or gone."""

    def remove(self, status: NodeStatus) -> None:
        """Forgets a stopped node; its folders stay."""
