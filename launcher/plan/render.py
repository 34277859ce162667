"""Format a plan as text or as a JSON document."""

import dataclasses
import shlex
from collections.abc import Iterator
from typing import Any

from .plan import ASKED, Container, NodePlan, Plan


def plan_document(plan: Plan) -> dict[str, Any]:
    """Return the whole plan. In a dry run, what only hosts know is null or `<asked at launch>`."""
    document = dataclasses.asdict(plan)
    document["engine"] = plan.engine.name
    for node, node_plan in zip(document["nodes"], plan.nodes, strict=True):
        node["host"] = node_plan.host.name
    return {"version": 1, **document, "world_size": plan.world_size}


def plan_text(plan: Plan) -> str:
    blocks = [_head(plan), *(_node(plan, node) for node in plan.nodes)]
    return "\n\n".join("\n".join(lines) for lines in blocks)


def _head(plan: Plan) -> Iterator[str]:
    ranks = plan.world_size if plan.world_size is not None else ASKED
    yield f"run           {plan.run_id} (attempt {plan.attempt}, owner {plan.owner})"
    any_hosts = ", on any hosts with free GPUs (the first are shown)" if plan.options.nodes else ""
    yield f"nodes         {plan.nnodes}, ranks {ranks}{any_hosts}"
    yield f"master        {plan.master_addr}:{plan.master_port}"
    yield f"engine        {plan.engine.name}"
    if plan.engine.in_container:
        yield f"image         {plan.image}"
    if plan.workdir:
        yield f"workdir       {plan.workdir} -> /workspace"
    if plan.dataset:
        yield f"dataset       {plan.dataset} -> /data (read-only)"
    yield f"max-restarts  {plan.max_restarts}"
    yield f"stop-timeout  {plan.stop_timeout} s"
    yield f"time-limit    {f'{plan.time_limit} s' if plan.time_limit else 'none'}"
    options = dataclasses.asdict(plan.options)
    del options["nodes"]
    options["wait"] = {None: "no", 0: "as long as it takes"}.get(plan.options.wait) or (
        f"{plan.options.wait} s"
    )
    for name, value in options.items():
        yield f"{name.replace('_', '-'):<13} {_option(value)}"


def _option(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g} s" if isinstance(value, float) else str(value or "none")


def _node(plan: Plan, node: NodePlan) -> Iterator[str]:
    yield f"node {node.node_rank} on {node.host.name}"
    if plan.engine.in_container:
        yield from _container(node.container)
    for key, value in node.container.env.items():
        yield f"  env         {key}={value}"
    for name in node.container.env_names:
        yield f"  env         {name} (value not shown)"
    yield f"  {shlex.join(node.torchrun)}"


def _container(container: Container) -> Iterator[str]:
    gpus = container.gpus
    listed = gpus if isinstance(gpus, str) else ",".join(str(gpu) for gpu in gpus)
    vendor = " (AMD)" if container.gpu_vendor == "amd" else ""
    rows: list[tuple[str, object]] = [
        ("container", container.name),
        ("entrypoint", shlex.join(container.entrypoint)),
        ("gpus", (listed or "none") + vendor),
        ("user", container.user),
        ("network", container.network),
        ("init", _option(container.init)),
        ("shm-size", container.shm_size),
        *(("tmpfs", f"{folder}={size}") for folder, size in container.tmpfs.items()),
        *(("ulimit", f"{name}={limit}") for name, limit in container.ulimits.items()),
        *(("cap-add", capability) for capability in container.cap_add),
        *(("group-add", group) for group in container.group_add),
        *(("device", device) for device in container.devices),
        *(("mount", f"{m.source}:{m.target}{':ro' * m.read_only}") for m in container.mounts),
        *(("label", f"{key}={value}") for key, value in container.labels.items()),
    ]
    return (f"  {name:<11} {value}" for name, value in rows)
