"""One node of a run, or its place in line, as the engine of its host reports it."""

from __future__ import annotations

from dataclasses import dataclass

GONE = ("exited", "cancelled", "dead", "created", "waiting")  # nothing of the node runs
UNSTARTED = ("created", "waiting")
LEASE = 60.0  # seconds; a launch starts or renews what it has created on a host sooner than that


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
    handle: str  # container name, or control folder; identifies the node to stop and remove
    state: str  # waiting created running paused restarting removing exited cancelled dead unknown
    exit_code: int | None  # None while it runs, and when it cannot be known
    oom_killed: bool = False
    created: float | None = None  # unix seconds, the host's clock
    started: float | None = None
    ended: float | None = None
    error: str = ""
    image: str = ""
    master_port: str = ""
    gpus: tuple[str, ...] = ()  # UUIDs of those that it uses, or would use
    container: str = ""  # its id, "" without one
    since: float = 0.0  # unix seconds, the clock of node 0: when the run asked for its GPUs
    age: float = 0.0  # seconds since it was created

    @property
    def alive(self) -> bool:
        return self.state not in GONE

    @property
    def waits(self) -> bool:
        """Whether this is a run's place in line, and its launch still waits."""
        return self.state == "waiting" and not self.expired

    @property
    def resources(self) -> frozenset[str]:
        """What the node has to itself on its host: GPUs by UUID, and on node 0 the master port."""
        port = [f"port {self.master_port}"] if self.node_rank == 0 and self.master_port else []
        return frozenset([*self.gpus, *port])

    @property
    def expired(self) -> bool:
        """Whether the launch that would start this node has gone."""
        return self.state in UNSTARTED and self.age > LEASE
