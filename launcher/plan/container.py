"""A node's container: its user, GPUs and mounts, and its access to devices of the host. Pure."""

import dataclasses

from ..facts.facts import Facts
from ..hosts import Host, Job
from .node_gpus import gpu_ids
from .plan import CONTROL_DIR, Container, Gpus, JobPaths, Mount, Plan

METRICS_DIR = "/ddpctl-metrics"  # where job.metrics_dir is mounted in the container
AMD_DEVICES = ("/dev/kfd", "/dev/dri")
# Capabilities that Docker grants by default, but training does not need
DROPPED = tuple("AUDIT_WRITE MKNOD NET_BIND_SERVICE NET_RAW SETFCAP SETPCAP SYS_CHROOT".split())
STACK_BYTES = 67108864  # the value that NVIDIA's images recommend
IN_CONTAINER = JobPaths(
    CONTROL_DIR, "/checkpoints", "/output", "/workspace", "/data", "/ddpctl-cache"
)


def with_access(container: Container, job: Job, facts: Facts | None) -> Container:
    """Return the container with access to what NCCL needs, AMD's devices, and what the job adds.

    NCCL needs pinned memory and, if the host has InfiniBand, its devices. The job's limits override
    ddpctl's. facts: None if the host has not been asked.
    """
    gpus = container.gpus
    infiniband = facts.infiniband if facts else None
    amd = bool(gpus) and facts is not None and facts.has_amd_gpus
    limits = {"memlock": -1, "stack": STACK_BYTES} if gpus or infiniband else {}
    capabilities = ("IPC_LOCK",) if infiniband else ()
    devices = (*(["/dev/infiniband"] if infiniband else []), *(AMD_DEVICES if amd else ()))
    return dataclasses.replace(
        container,
        gpu_vendor="amd" if amd else "nvidia",
        group_add=facts.gpu_groups if amd and facts else (),
        tmpfs=job.tmpfs,
        ulimits={**limits, **job.ulimits},
        cap_add=tuple(dict.fromkeys((*capabilities, *job.cap_add))),
        cap_drop=tuple(c for c in DROPPED if not {c, "ALL"} & {*job.cap_add}),
        pids_limit=job.pids_limit,
        new_privileges=job.new_privileges == "allow",
        devices=tuple(dict.fromkeys((*devices, *job.devices))),
    )


def container_user(job: Job, facts: Facts | None) -> str:
    """Return the container's user as UID:GID, or `host` if it depends on a host not asked yet."""
    if job.user == "host" and facts:
        return f"{facts.uid}:{facts.gid}"
    return "0:0" if job.user == "root" else job.user


def fixed_uid(plan: Plan) -> str:
    """Return the user id in job.user; "" if it is `root` or `host`, or if there are no containers."""
    chosen = plan.engine.in_container and plan.job.user not in ("host", "root")
    return plan.job.user.split(":")[0] if chosen else ""


def container_gpus(host: Host, facts: Facts | None) -> Gpus:
    """Return `all` if that is the value of `gpus:`, else the ids of the GPUs.

    Also returns ids if the host has no GPU, or an integrated one, which `all` would include.
    """
    by_id = host.gpus != "all"
    if facts and not by_id:
        by_id = not facts.gpus or any(gpu.integrated for gpu in facts.gpus)
    return gpu_ids(host, facts) if by_id else "all"


def container_mounts(job: Job, folders: JobPaths) -> tuple[Mount, ...]:
    mounts = [Mount(folders.control, IN_CONTAINER.control)]
    if job.dataset:
        mounts.append(Mount(folders.data, IN_CONTAINER.data, read_only=True))
    if job.workdir:
        mounts.append(Mount(folders.workspace, IN_CONTAINER.workspace))
    mounts.append(Mount(folders.checkpoints, IN_CONTAINER.checkpoints))
    mounts.append(Mount(folders.output, IN_CONTAINER.output))
    mounts.append(Mount(folders.cache, IN_CONTAINER.cache))
    for mount in job.mounts:
        source, target, *mode = mount.split(":")
        mounts.append(Mount(source, target, read_only="ro" in mode, from_job=True))
    if job.metrics_dir:
        mounts.append(Mount(job.metrics_dir, METRICS_DIR, from_job=True))
    return tuple(mounts)
