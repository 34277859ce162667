"""How the hosts form one job: processes per node, addresses, free ports."""

import hashlib
import re
from collections.abc import Sequence

from ..errors import UsageError
from ..facts.script import Facts
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


def node_addresses(cluster: Cluster, facts: Sequence[Facts]) -> tuple[str, ...]:
    """Return the address of each node for traffic between nodes.

    It is internal_ip if given. Otherwise it is the address of the host's end of the SSH connection,
    which is the host's own even behind a jump host or a forwarded port. For this machine, it is the
    address from which it connects to the others. Raises UsageError if only some are loopback.
    """
    if all(host.is_local for host in cluster.hosts):
        return tuple(host.internal_ip or "127.0.0.1" for host in cluster.hosts)
    if not facts:
        return tuple(host.internal_ip or host.name for host in cluster.hosts)
    seen_from = next((f.ssh_client_ip for f in facts if f.ssh_client_ip), None)
    found = [
        host.internal_ip or (seen_from if host.is_local else facts[rank].ssh_server_ip) or host.name
        for rank, host in enumerate(cluster.hosts)
    ]
    loopback = [ip.startswith("127.") or ip == "::1" for ip in found]
    if any(loopback) and not all(loopback):
        rank = loopback.index(True)
        raise UsageError(
            f"{cluster.hosts[rank].name} (node {rank}) is reached at {found[rank]}, which the "
            "other nodes cannot use: set its internal_ip in the hosts file"
        )
    return tuple(found)


def free_port(seed: str, taken: frozenset[int]) -> int:
    """Return a port that is not in `taken`. The search starts at a port derived from `seed`."""
    start = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4], "big")
    for step in range(len(AUTO_PORTS)):
        port = AUTO_PORTS[(start + step) % len(AUTO_PORTS)]
        if port not in taken:
            return port
    raise UsageError(f"no free port on node 0 between {AUTO_PORTS[0]} and {AUTO_PORTS[-1]}")
