"""A plan for people (text) and for programs (a JSON document)."""

from __future__ import annotations

import dataclasses
import shlex
from typing import Any

from launcher.plan.plan import ASKED, Container, NodePlan, Plan


def plan_document(plan: Plan) -> dict[str, Any]:
    """The whole plan, version 1. Values that only the hosts know are null or `<asked at launch>`."""
    document = dataclasses.asdict(plan)
    for node, node_plan in zip(document["nodes"], plan.nodes, strict=True):
        node["host"] = node_plan.host.name
    return {"version": 1, **document, "world_size": plan.world_size}


def plan_text(plan: Plan) -> str:
    ranks = plan.world_size if plan.world_size is not None else ASKED
    head = [
        f"run         {plan.run_id} (attempt {plan.attempt}, owner {plan.owner})",
        f"nodes       {plan.nnodes}, ranks {ranks}",
        f"master      {plan.master_addr}:{plan.master_port}",
        f"engine      {plan.engine}",
        f"image       {plan.image}" if plan.engine == "docker" else "",
        f"workdir     {plan.workdir} -> /workspace" if plan.workdir else "",
        f"dataset     {plan.dataset} -> /data (read-only)" if plan.dataset else "",
    ]
    blocks = ["\n".join(line for line in head if line)]
    blocks += [_node_text(plan, node) for node in plan.nodes]
    return "\n\n".join(blocks)


def _node_text(plan: Plan, node: NodePlan) -> str:
    lines = [f"node {node.node_rank} on {node.host.name}"]
    if plan.engine == "docker":
        lines.append(f"  container {node.container.name}")
        lines.append(f"  gpus      {_gpus(node.container)}")
        lines.append(f"  user      {node.container.user}")
        lines += [
            f"  mount     {m.source}:{m.target}{':ro' if m.read_only else ''}"
            for m in node.container.mounts
        ]
        lines += [f"  label     {key}={value}" for key, value in node.container.labels.items()]
    lines += [f"  env       {key}={value}" for key, value in node.container.env.items()]
    lines.append(f"  {shlex.join(node.torchrun)}")
    return "\n".join(lines)


def _gpus(container: Container) -> str:
    if isinstance(container.gpus, str):
        return container.gpus
    return ",".join(str(gpu) for gpu in container.gpus) or "none"
