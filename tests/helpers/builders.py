"""Records of runs and statuses of nodes. A test passes only the fields that it is about."""

from __future__ import annotations

from typing import Any

from launcher.engines.status import ContainerState, NodeStatus
from launcher.outcomes import RunState
from launcher.runs.record import AttemptRecord, NodeRecord, RunRecord


def run_record(*attempts: AttemptRecord, **fields: Any) -> RunRecord:
    """Return the record of a run. Unless `attempts` are given, it has one, running on one host."""
    every = {
        "run_id": "20261122-100000-abcd",
        "name": "night",
        "owner": "ann@here",
        "engine": "docker",
        "hosts": ["gpu1"],
        "image": "image",
        "image_digest": None,
        "dataset_digest": None,
        "workdir_digest": None,
        "command": [],
        "stop_timeout": 60,
        "attempts": [*attempts] or [attempt_record()],
    }
    return RunRecord(**every | fields)


def attempt_record(**fields: Any) -> AttemptRecord:
    every = {
        "attempt": 1,
        "state": RunState.RUNNING,
        "created": "2026-11-22T08:00:00.000Z",
        "nodes": [NodeRecord(0, "gpu1", "/r")],
        "world_size": 1,
        "master_addr": "10.0.0.1",
        "master_port": 29500,
    }
    return AttemptRecord(**every | fields)


def node_status(run_id: str, rank: int, state: str, **fields: Any) -> NodeStatus:
    """Return the status of one node of a run on two hosts, as its host's engine reports it."""
    every = {
        "run_id": run_id,
        "name": "",
        "attempt": 1,
        "node_rank": rank,
        "nnodes": 2,
        "owner": "ann@here",
        "host": f"h{rank}",
        "handle": f"ddpctl-{run_id}-{rank}",
        "state": ContainerState(state),
        "exit_code": None,
    }
    return NodeStatus(**every | fields)
