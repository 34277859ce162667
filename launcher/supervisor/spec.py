"""spec.json: the launcher's instructions for the supervisor of one node."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Spec:
    """Times are in seconds. hosts: names of all nodes on node 0, only node 0's name on others."""

    run_id: str
    attempt: int
    node_rank: int
    nnodes: int
    nproc_per_node: int
    first_rank: int  # global rank of this node's local rank 0
    host: str
    hosts: list[str]
    argv: list[str]
    cwd: str | None
    dir: str  # the control folder, with the journal, requests and answers
    cancel_file: str  # exists if the user has cancelled the run
    stop_timeout: float  # from SIGTERM to SIGKILL
    master_addr: str
    control_port: int
    token: str
    checkpoint_dir: str | None
    output_dir: str | None
    internal_ip: str | None
    metrics_dir: str | None = None  # for a Prometheus textfile
    hang_timeout: float | None = None  # without progress; None: forever
    time_limit: float | None = None  # from the start of the attempt
    start_timeout: float = 60.0  # for all nodes to join
    peer_timeout: float = 8.0  # without a heartbeat, or of a rank held by SIGSTOP
    early_exit_timeout: float = 10.0  # from a rank's exit with 0 while the others stand still
    failure_grace: float = 3.0  # like stop_timeout, when another rank or node has failed
