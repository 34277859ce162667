"""Format a dry run's plan, made without asking the hosts, as text or as a JSON document."""

import dataclasses
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from ..text import duration
from .labels import LABEL
from .plan import Mount, NodePlan, Plan
from .supervisor_spec import torchrun_command

ASKED = "<asked at launch>"  # stands for values that depend on the hosts
LABELS_AT_LAUNCH = {f"{LABEL}.{key}": ASKED for key in ("master-port", "gpus", "since")}
WIDTH = 100  # maximum characters of a line that several values share
OF_JOB = "image dataset workdir stop_timeout time_limit max_restarts min_nodes numa".split()


def plan_document(plan: Plan) -> dict[str, Any]:
    """Return the plan as a JSON document. Values that depend on the hosts are None or absent."""
    document = dataclasses.asdict(plan)
    del document["job"], document["nnodes"]
    document["options"]["by"] = "launch"  # only `launch` has --dry-run
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
    """Return the plan as text: what all nodes have in common, then each node's differences."""
    rows = [list(node_rows(plan, node)) for node in plan.nodes]
    shared = [row for row in rows[0] if all(row in others for others in rows)]
    width = max(len(node.host.name) for node in plan.nodes)
    lines = [f"{name:<13} {value}" for name, value in _head(plan) if value]
    lines += ["", "on every node", *_folded(shared)]
    lines += ["", "on node K, where it differs"]
    for node, own in zip(plan.nodes, rows, strict=True):
        differences = [f"{kind} {value}" for kind, value in own if (kind, value) not in shared]
        place = f"  {node.node_rank:>2}  {node.host.name:<{width}}"
        lines.append(f"{place}  {', '.join(differences)}".rstrip())
    return "\n".join([*lines, "", *_torchrun(plan)])


def _torchrun(plan: Plan) -> Iterator[str]:
    """Yield a heading and the torchrun command of node 0, ready to be pasted into a shell."""
    first = plan.nodes[0]
    others = "; the other nodes have their own --node-rank" if plan.nnodes > 1 else ""
    known = dataclasses.replace(
        plan,
        master_addr=plan.master_addr or ("127.0.0.1" if plan.nnodes == 1 else first.host.name),
        master_port=plan.master_port or 29500,
    )
    is_known = plan.master_addr and plan.master_port
    chosen = "" if is_known else "; address and port are set at launch"
    yield f"torchrun on node 0{others}{chosen}"
    yield f"  {shlex.join(torchrun_command(known, first))}"


def _head(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the run's settings as (name, value). The value is "" if a setting does not apply."""
    job, options, wait = plan.job, plan.options, plan.options.wait
    ranks = plan.world_size if plan.world_size is not None else ASKED
    any_hosts = ", on any hosts with free GPUs (the first hosts are shown)" if options.nodes else ""
    paths = plan.nodes[0].paths
    read_only = " (read-only)" if plan.engine.in_container else ""
    yield "run", f"{plan.run_id} (attempt {plan.attempt}, owner {plan.owner})"
    yield "nodes", f"{plan.nnodes}, ranks {ranks}{any_hosts}"
    yield "master", f"{plan.master_addr or ASKED}:{plan.master_port or ASKED}"
    yield "image", job.image if plan.engine.in_container else ""
    yield "workdir", f"{job.workdir} -> {paths.workspace}" if job.workdir else ""
    yield "dataset", f"{job.dataset} -> {paths.data}{read_only}" if job.dataset else ""
    yield "max restarts", str(job.max_restarts)
    yield "time to stop", duration(job.stop_timeout)
    yield "time limit", duration(job.time_limit) if job.time_limit else ""
    yield "hang timeout", duration(options.hang_timeout) if options.hang_timeout else ""
    yield "wait", "" if wait is None else duration(wait) if wait else "as long as it takes"
    yield "engine", "" if plan.engine.keeps_containers else plan.engine.name
    yield "min nodes", str(job.min_nodes or "")
    yield "numa", "" if job.numa == "auto" else job.numa
    yield "push", "" if options.push else "no"
    yield "check", "" if options.check else "no"
    yield "detach", "yes" if options.detach else ""
    yield "on exit", options.on_exit or ""
    yield "on event", options.on_event or ""


def _folded(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield the rows as lines. Values of the same kind share lines of up to WIDTH characters."""
    kinds: dict[str, list[str]] = {}
    for kind, value in rows:
        kinds.setdefault(kind, []).append(value)
    for kind, values in kinds.items():
        line = f"  {kind:<10}"
        for value in values:
            if len(line) + len(value) > WIDTH and line.strip() and line.strip() != kind:
                yield line
                line = f"  {'':<10}"
            line += f"  {value}"
        yield line


def node_rows(plan: Plan, node: NodePlan) -> Iterator[tuple[str, str]]:
    """Yield a node's settings as (kind, value). In the values, K stands for the node rank."""
    yield "address", f"{node.internal_ip or ASKED} on {node.interface or ASKED}"
    yield "processes", str(node.nproc_per_node or "one per GPU")
    if plan.engine.image_files:
        yield "file", node.container.image
        yield from (("mount", _mount(mount, node.node_rank)) for mount in node.container.mounts)
    elif plan.engine.in_container:
        yield from _container(node)
    for key, value in node.container.env.items():
        yield "env", f"{key}={'K' if key == 'DDPCTL_NODE_RANK' else value}"
    yield from (("at launch", name) for name in node.container.env_at_launch)
    yield from (("not shown", name) for name in node.container.env_names)


def _container(node: NodePlan) -> Iterator[tuple[str, str]]:
    """Yield the container's settings. Its devices and capabilities depend on the host."""
    container, rank, gpus = node.container, node.node_rank, node.container.gpus
    listed = gpus if isinstance(gpus, str) else ",".join(str(gpu) for gpu in gpus)
    yield "gpus", listed or "none"
    yield "container", container.name.removesuffix(str(rank)) + "K"
    yield "entrypoint", shlex.join(container.entrypoint)
    yield "user", "the SSH user" if container.user == "host" else container.user
    yield "network", container.network
    yield "init", "yes" if container.init else "no"
    yield "shm", _size(container.shm_size)
    for kind, values in {
        "tmpfs": [f"{folder}={_size(size)}" for folder, size in container.tmpfs.items()],
        "ulimit": [f"{name}={limit}" for name, limit in container.ulimits.items()],
        "cap-add": [ASKED, *container.cap_add],
        "cap-drop": container.cap_drop,
        "pids-limit": [container.pids_limit],
        "security": [] if container.new_privileges else ["no-new-privileges"],
        "device": [ASKED, *container.devices],
        "mount": [_mount(mount, rank) for mount in container.mounts],
        "label": [
            f"{key}={'K' if key == f'{LABEL}.node-rank' else value}"
            for key, value in {**LABELS_AT_LAUNCH, **container.labels}.items()
            if value
        ],
    }.items():
        yield from ((kind, str(value)) for value in values)


def _mount(mount: Mount, rank: int) -> str:
    source = mount.source.replace(f"/nodes/{rank}/attempt-", "/nodes/K/attempt-")
    return f"{source}:{mount.target}{':ro' * mount.read_only}"


def _size(number: int) -> str:
    units = {"g": 1 << 30, "m": 1 << 20, "": 1}
    return next(f"{number // size}{unit}" for unit, size in units.items() if number % size == 0)
