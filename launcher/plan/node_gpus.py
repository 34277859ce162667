"""The GPUs that a node uses, and the number of its processes, which is one per GPU by default."""

import re

from ..facts.facts import Facts
from ..hosts import Host, Job

UUID = re.compile(r"[\w.:-]{1,64}", re.ASCII)


def gpu_ids(host: Host, facts: Facts | None) -> tuple[int, ...]:
    """Return the ids of the node's GPUs.

    `all` stands for all GPUs except integrated ones, and for none if `facts` is None.
    """
    if host.gpus == "all":
        return tuple(gpu.index for gpu in facts.gpus if not gpu.integrated) if facts else ()
    return host.gpu_ids


def ids_by_uuid(host: Host, facts: Facts) -> dict[str, int]:
    """Return the ids of the node's GPUs, by UUID, or by `gpu-ID` for a GPU without a valid UUID."""
    uuids = {gpu.index: gpu.uuid for gpu in facts.gpus if UUID.fullmatch(gpu.uuid)}
    return {uuids.get(gpu, f"gpu-{gpu}"): gpu for gpu in gpu_ids(host, facts)}


def nproc_on(host: Host, job: Job, facts: Facts | None) -> int | None:
    """Return the number of processes on a node; None if the host has to be asked first.

    It is the host's nproc_per_node, else the job's, else one per GPU, or 1 without GPUs.
    """
    if asked := host.nproc_per_node or job.nproc_per_node:
        return asked
    if host.gpus == "all" and facts is None:
        return None
    return max(1, len(gpu_ids(host, facts)))
