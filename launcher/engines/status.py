"""One node of a run, as the engine of its host reports it."""

from __future__ import annotations

from dataclasses import dataclass

GONE = ("exited", "cancelled", "dead", "created")  # states in which nothing of the node runs


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
    state: str  # created running paused restarting removing exited cancelled dead unknown
    exit_code: int | None  # None while it runs, and when it cannot be known
    oom_killed: bool = False
    started: float | None = None  # unix seconds, the host's clock
    ended: float | None = None
    error: str = ""
    image: str = ""
    master_port: str = ""
    gpus: tuple[str, ...] = ()  # UUIDs of those that it uses, or would use
    container: str = ""  # its id, "" without one

    @property
    def alive(self) -> bool:
        return self.state not in GONE
