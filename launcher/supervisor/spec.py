"""spec.json: the launcher's instructions for the supervisor of one node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterable, Sequence

from .restart_rule import PAUSES_IN_PLACE


@dataclass(frozen=True)
class Spec:
    """The contents of spec.json. Times are in seconds."""

    run_id: str
    attempt: int
    node_rank: int
    nnodes: int
    nproc_per_node: int
    first_rank: int  # global rank of this node's local rank 0
    host: str
    hosts: list[str]  # on node 0, the hosts of all nodes; on other nodes, only the host of node 0
    argv: list[str]
    cwd: str | None
    dir: str  # the control folder, with the journal, requests, answers and the mark of a killed run
    stop_timeout: float  # the time from SIGTERM to the engine's SIGKILL
    master_addr: str
    control_port: int
    token: str
    checkpoint_dir: str
    output_dir: str
    metrics_dir: str | None = None  # the folder for a Prometheus textfile
    hang_timeout: float | None = None  # the time allowed without progress; None: unlimited
    time_limit: float | None = None  # counted from the start of the attempt; None: unlimited
    start_timeout: float = 60.0  # the time for all nodes to join
    peer_timeout: float = 8.0  # the time allowed without a heartbeat, or with a stopped rank
    early_exit_timeout: float = 10.0  # the time that others may wait for a rank that exited with 0
    failure_grace: float = 3.0  # the maximum time from SIGTERM to SIGKILL after a failure
    notes: Sequence[str] = ()  # messages for the start of the log
    # restarts in place
    max_restarts: int = 0  # for the whole run, including those before this attempt
    past_restarts: Sequence[Sequence[Any]] = ()  # (cause, saved): fields of PastRestart
    resume_args: Sequence[str] = ()  # appended to argv
    restart_pauses: Sequence[float] = PAUSES_IN_PLACE

    def names(self, ranks: Iterable[int]) -> str:
        """Return the nodes' names for a message: `node 1 (gpu2), node 3 (gpu4)`."""
        return ", ".join("node %d (%s)" % (rank, self.hosts[rank]) for rank in ranks)

    def time_to_save(self, *, failed: bool = False) -> float:
        """Return the seconds from SIGTERM to our SIGKILL; only a few if the run has failed.

        The engine's own SIGKILL, stop_timeout after SIGTERM, also kills the supervisor, so ours
        must come first.
        """
        grace = max(0.5 * self.stop_timeout, self.stop_timeout - 3.0)
        return min(grace, self.failure_grace) if failed else grace
