"""How the hosts form one job: processes per node, addresses, free ports."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from launcher.errors import UsageError
from launcher.facts.script import Facts
from launcher.hosts import Cluster, Host

AUTO_PORTS = range(20000, 32000)  # below Linux's default ephemeral range, which starts at 32768


def nproc_per_node(cluster: Cluster, facts: Sequence[Facts] | None) -> int | None:
    """One process per GPU, one on a CPU host; the same on all nodes, as torchrun requires."""
    if cluster.job.nproc_per_node is not None:
        return cluster.job.nproc_per_node
    counts: dict[str, int] = {}
    for rank, host in enumerate(cluster.hosts):
        gpus = len(gpu_ids(host, facts[rank])) if facts else _stated_gpus(host)
        if gpus is None:
            return None
        counts[f"{host.name} (node {rank})"] = max(gpus, 1)
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name}: {count}" for name, count in counts.items())
        raise UsageError(
            f"{cluster.source}: the nodes have different numbers of GPUs ({listed}), and torchrun "
            "needs the same number of processes on each: set job.nproc_per_node or the hosts' gpus"
        )
    return next(iter(counts.values()))


def _stated_gpus(host: Host) -> int | None:
    if host.gpus == "all":
        return None
    return host.gpus if isinstance(host.gpus, int) else len(host.gpus)


def gpu_ids(host: Host, facts: Facts) -> tuple[int, ...]:
    """The ids of the GPUs that a node uses. `all` on a host without GPUs makes a CPU node."""
    if host.gpus == "all":
        return tuple(gpu.index for gpu in facts.gpus)
    return tuple(range(host.gpus)) if isinstance(host.gpus, int) else tuple(host.gpus)


def node_addresses(cluster: Cluster, facts: Sequence[Facts] | None) -> tuple[str, ...]:
    """The address by which the other nodes reach each node.

    internal_ip if given, else the address that SSH connected to on the host, which is its own even
    behind a jump host or a forwarded port. For this machine: the address that the others see.
    """
    if all(host.is_local for host in cluster.hosts):
        return tuple(host.internal_ip or "127.0.0.1" for host in cluster.hosts)
    if facts is None:
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
            f"{cluster.hosts[rank].name} (node {rank}) is reached over {found[rank]}, which the "
            "other nodes cannot use: set its internal_ip in the hosts file"
        )
    return tuple(found)


def free_port(seed: str, taken: frozenset[int]) -> int:
    """A port not in `taken`. The search starts at a place that depends on `seed`."""
    start = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4], "big")
    for step in range(len(AUTO_PORTS)):
        port = AUTO_PORTS[(start + step) % len(AUTO_PORTS)]
        if port not in taken:
            return port
    raise UsageError(f"no free port on node 0 between {AUTO_PORTS[0]} and {AUTO_PORTS[-1]}")
