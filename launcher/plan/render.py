"""Format a plan as text or as a JSON document."""

import dataclasses
import shlex
from collections.abc import Iterator
from typing import Any

from ..text import duration
from .labels import LABEL
from .plan import Container, NodePlan, Plan
from .supervisor_spec import torchrun_command

ASKED = "<asked at launch>"  # in a dry run, for values that only the hosts know
LABELS_AT_LAUNCH = [f"{LABEL}.{key}" for key in ("master-port", "gpus", "since")]
OF_JOB = (
    *("image", "dataset", "workdir", "stop_timeout", "time_limit"),
    *("max_restarts", "min_nodes", "numa"),
)


def plan_document(plan: Plan) -> dict[str, Any]:
    """Return the whole plan. In a dry run, what only the hosts know is null or absent."""
    document = dataclasses.asdict(plan)
    del document["job"]
    document |= {name: getattr(plan.job, name) for name in OF_JOB}
    for node, node_plan in zip(document["nodes"], plan.nodes, strict=True):
        node["host"] = node_plan.host.name
        node["torchrun"] = torchrun_command(plan, node_plan, ASKED)
    return {
        "version": 1,
        **document,
        "name": plan.options.name,
        "engine": plan.engine.name,
        "world_size": plan.world_size,
    }


def plan_text(plan: Plan) -> str:
    blocks = [_head(plan), *(_node(plan, node) for node in plan.nodes)]
    return "\n\n".join("\n".join(lines) for lines in blocks)


def _head(plan: Plan) -> Iterator[str]:
    job, ranks = plan.job, plan.world_size if plan.world_size is not None else ASKED
    yield f"run           {plan.run_id} (attempt {plan.attempt}, owner {plan.owner})"
    any_hosts = ", on any hosts with free GPUs (the first are shown)" if plan.options.nodes else ""
    yield f"nodes         {plan.nnodes}, ranks {ranks}{any_hosts}"
    yield f"master        {plan.master_addr or ASKED}:{plan.master_port or ASKED}"
    yield f"engine        {plan.engine.name}"
    if plan.engine.in_container:
        yield f"image         {job.image}"
    if job.workdir:
        yield f"workdir       {job.workdir} -> /workspace"
    if job.dataset:
        yield f"dataset       {job.dataset} -> /data (read-only)"
    yield f"numa          {job.numa}"
    used = f" ({len(plan.past_restarts)} used)" if plan.past_restarts else ""
    yield f"max-restarts  {job.max_restarts}{used}"
    yield f"stop-timeout  {duration(job.stop_timeout)}"
    yield f"time-limit    {duration(job.time_limit) if job.time_limit else 'none'}"
    options = dataclasses.asdict(plan.options)
    del options["nodes"]
    wait, hang_timeout = plan.options.wait, plan.options.hang_timeout
    options["wait"] = "no" if wait is None else duration(wait) if wait else "as long as it takes"
    options["hang_timeout"] = duration(hang_timeout) if hang_timeout else "none"
    for name, value in options.items():
        yield f"{name.replace('_', '-'):<13} {_option(value)}"


def _option(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value or "none")


def _node(plan: Plan, node: NodePlan) -> Iterator[str]:
    interface = node.interface or ("unknown" if plan.hosts_were_asked else ASKED)
    yield f"node {node.node_rank} on {node.host.name}"
    yield f"  address     {node.internal_ip or ASKED} on interface {interface}"
    if plan.engine.in_container:
        yield from _container(node.container, plan.hosts_were_asked)
    for key, value in node.container.env.items():
        yield f"  env         {key}={value}"
    for name in node.container.env_at_launch:
        yield f"  env         {name}={ASKED}"
    for name in node.container.env_names:
        yield f"  env         {name} (value not shown)"
    yield f"  {shlex.join(torchrun_command(plan, node, ASKED))}"


def _container(container: Container, host_was_asked: bool) -> Iterator[str]:
    """Format the container. InfiniBand needs a device and a capability where a host has it."""
    gpus, asked = container.gpus, [] if host_was_asked else [ASKED]
    labels = {} if host_was_asked else dict.fromkeys(LABELS_AT_LAUNCH, ASKED)
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
        *(("cap-add", capability) for capability in (*asked, *container.cap_add)),
        *(("cap-drop", capability) for capability in container.cap_drop),
        ("pids-limit", container.pids_limit),
        *([] if container.new_privileges else [("security", "no-new-privileges")]),
        *(("group-add", group) for group in container.group_add),
        *(("device", device) for device in (*asked, *container.devices)),
        *(("mount", f"{m.source}:{m.target}{':ro' * m.read_only}") for m in container.mounts),
        *(("label", f"{key}={value}") for key, value in {**labels, **container.labels}.items()),
    ]
    return (f"  {name:<11} {value}" for name, value in rows)
