"""Find hosts that share a machine or a subnet, the cores next to each rank's GPU, and a free port."""

import hashlib
from collections import Counter
from collections.abc import Sequence

from ..errors import UsageError
from ..facts.facts import Facts
from ..hosts import Host
from .node_gpus import gpu_ids

AUTO_PORTS = range(20000, 32000)  # below Linux's default ephemeral range, which starts at 32768


def rank_cores(
    hosts: Sequence[Host], nproc: Sequence[int | None], facts: Facts
) -> list[list[frozenset[int]]]:
    """Return, for each node on a machine, the cores next to each rank's GPU; [] to bind no rank.

    hosts, nproc: the hosts and process counts of the run's nodes on that machine. Ranks are bound
    only if the run uses all GPUs of the machine, one per rank, and the GPUs are spread evenly over
    all of its cores: otherwise, a rank could lose cores that its data loaders need.
    """
    free: list[list[frozenset[int]]] = [[] for _ in hosts]
    ids = [gpu_ids(host, facts) for host in hosts]
    gpus = {gpu.index: gpu for gpu in facts.gpus if not gpu.integrated}
    one_each = all(len(own) == count for own, count in zip(ids, nproc, strict=True))
    in_order = all(list(own) == sorted(own) for own in ids)
    all_of_them = sorted(i for own in ids for i in own) == sorted(gpus)
    alike = len({gpu.name for gpu in gpus.values()}) == 1  # CUDA lists faster models first
    groups = Counter(gpu.cores for gpu in gpus.values())
    is_even = len(groups) > 1 and len(set(groups.values())) == 1
    all_cores = sorted(core for group in groups for core in group) == sorted(facts.all_cores)
    if not (one_each and in_order and all_of_them and alike and is_even and all_cores):
        return free
    return [[gpus[i].cores for i in own] for own in ids]


def same_machine(hosts: Sequence[Host], facts: Sequence[Facts], rank: int) -> list[int]:
    """Return the node ranks on the same machine as node `rank`. Equal boot ids mean one machine."""
    boot_ids = [own.boot_id for own in facts] or [""] * len(hosts)
    return [
        other
        for other, host in enumerate(hosts)
        if host.machine == hosts[rank].machine or boot_ids[other] == boot_ids[rank] != ""
    ]


def same_subnet_first(subnets: Sequence[str], count: int) -> list[int]:
    """Return `count` indexes of hosts, from as few subnets as possible. subnets: one per host."""
    groups: dict[str, list[int]] = {}
    for place, subnet in enumerate(subnets):
        groups.setdefault(subnet, []).append(place)
    if enough := next((group for group in groups.values() if len(group) >= count), None):
        return enough[:count]
    largest_first = sorted(groups.values(), key=len, reverse=True)
    return sorted([place for group in largest_first for place in group][:count])


def free_port(seed: str, taken: frozenset[int]) -> int:
    """Return a port that is not in `taken`; the search starts at a port derived from `seed`.

    Raises UsageError if every port in AUTO_PORTS is taken.
    """
    start = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4], "big")
    for step in range(len(AUTO_PORTS)):
        port = AUTO_PORTS[(start + step) % len(AUTO_PORTS)]
        if port not in taken:
            return port
    what = f"no free port on node 0 between {AUTO_PORTS[0]} and {AUTO_PORTS[-1]}"
    raise UsageError(what, "set job.master_port to a free port")
