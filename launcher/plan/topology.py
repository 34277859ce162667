"""How the hosts form one job: processes per node, GPUs, free ports."""

import hashlib
import re
from collections.abc import Sequence

from ..errors import UsageError
from ..facts.facts import Facts
from ..hosts import Cluster, Host

UUID = re.compile(r"[\w.:-]{1,64}", re.ASCII)
AUTO_PORTS = range(20000, 32000)  # below Linux's default ephemeral range, which starts at 32768


def nproc_per_node(cluster: Cluster, facts: Sequence[Facts]) -> tuple[int | None, ...]:
    """Return the number of processes of each node, by node rank; None if only the host knows.

    It is the host's own number, else the job's, else one per GPU, else 1. facts: empty before the
    hosts were asked.
    """

    def count(rank: int, host: Host) -> int | None:
        if host.gpus == "all" and not facts:
            return None
        return max(1, len(gpu_ids(host, facts[rank] if facts else None)))

    return tuple(
        host.nproc_per_node or cluster.job.nproc_per_node or count(rank, host)
        for rank, host in enumerate(cluster.hosts)
    )


def gpu_ids(host: Host, facts: Facts | None) -> tuple[int, ...]:
    """Return the ids of the node's GPUs.

    `all` means all but integrated ones: none if the host has none, or if its facts are unknown.
    """
    if host.gpus == "all":
        return tuple(gpu.index for gpu in facts.gpus if not gpu.integrated) if facts else ()
    return host.gpu_ids


def ids_by_uuid(host: Host, facts: Facts) -> dict[str, int]:
    """Return the ids of the node's GPUs by UUID, or by `gpu-ID` for a GPU without a UUID."""
    uuids = {gpu.index: gpu.uuid for gpu in facts.gpus}
    return {
        uuid if UUID.fullmatch(uuid := uuids.get(gpu, "")) else f"gpu-{gpu}": gpu
        for gpu in gpu_ids(host, facts)
    }


def same_subnet_first(subnets: Sequence[str], count: int) -> list[int]:
    """Return the indexes of `count` hosts, from as few subnets as possible. subnets: one per host."""
    groups: dict[str, list[int]] = {}
    for place, subnet in enumerate(subnets):
        groups.setdefault(subnet, []).append(place)
    if enough := next((group for group in groups.values() if len(group) >= count), None):
        return enough[:count]
    largest_first = sorted(groups.values(), key=len, reverse=True)
    return sorted([place for group in largest_first for place in group][:count])


def free_port(seed: str, taken: frozenset[int]) -> int:
    """Return a port that is not in `taken`. The search starts at a port derived from `seed`."""
    start = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4], "big")
    for step in range(len(AUTO_PORTS)):
        port = AUTO_PORTS[(start + step) % len(AUTO_PORTS)]
        if port not in taken:
            return port
    raise UsageError(
        f"no free port on node 0 between {AUTO_PORTS[0]} and {AUTO_PORTS[-1]}",
        "set job.master_port to a free port",
    )
