"""spec.json: what the launcher tells the supervisor of one node. Pure; 0600 on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from launcher.plan.plan import CONTROL_DIR, NodePlan, Plan

BUNDLE = "supervisor.pyz"  # the supervisor's file in a node's control folder
ISOLATED = ("-I", "-S")  # python3 flags: PYTHONPATH and site packages are for the ranks only
OUR_TRAINER = ("-m", "trainer")
HANG_TIMEOUT = 1800.0  # seconds; our trainer writes progress each minute, but not as it evaluates


def hang_timeout_of(command: Sequence[str], asked: float | None) -> float | None:
    """Seconds without progress that end a run. A foreign script may be silent for as long as it
    likes, unless the user says otherwise; 0 is never, for ours too."""
    if asked is not None:
        return asked or None
    return HANG_TIMEOUT if tuple(command[:2]) == OUR_TRAINER else None


def supervisor_spec(
    plan: Plan, node: NodePlan, *, token: str, hang_timeout: float | None = None
) -> dict[str, Any]:
    """`token` is the run's secret, by which its supervisors know each other."""
    docker = plan.engine == "docker"
    env = node.container.env
    return {
        "v": 1,
        "run_id": plan.run_id,
        "attempt": plan.attempt,
        "node_rank": node.node_rank,
        "nnodes": plan.nnodes,
        "nproc_per_node": plan.nproc_per_node,
        "first_rank": node.node_rank * (plan.nproc_per_node or 1),
        "host": node.host.name,
        "hosts": [other.host.name for other in plan.nodes],
        "argv": list(node.torchrun),
        "cwd": _working_directory(plan, node),
        "dir": CONTROL_DIR if docker else node.place.control_dir,
        "cancel_file": f"{CONTROL_DIR if docker else node.place.control_dir}/cancelled",
        "stop_timeout": plan.stop_timeout,
        "master_addr": plan.master_addr,
        "master_port": plan.master_port,
        "control_port": plan.control_port,
        "token": token,
        "hang_timeout": hang_timeout_of(plan.command, hang_timeout),
        "checkpoint_dir": env["DDPCTL_CHECKPOINT_DIR"],
        "output_dir": env["DDPCTL_OUTPUT_DIR"],
        "interface": node.interface,
        "internal_ip": node.internal_ip,
    }


def _working_directory(plan: Plan, node: NodePlan) -> str | None:
    """None leaves it as it is: the image's own, or for a process the launcher's."""
    if not plan.workdir:
        return None
    return "/workspace" if plan.engine == "docker" else f"{node.place.run_dir}/workspace"
