"""`--include` and `--exclude`: select hosts and GPUs of a cluster in DeepSpeed's syntax. Pure.

`host1@host2:0,2` means all of host1, and GPUs 0 and 2 of host2.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping

from ..errors import UsageError
from .model import Cluster, Host

# GPU ids by lower-case host name; None: the whole host
Chosen = Mapping[str, frozenset[int] | None]


def select(cluster: Cluster, include: str | None, exclude: str | None) -> Cluster:
    """Return the cluster reduced to the hosts and GPUs of `include`, or without those of `exclude`.

    Hosts keep their order, which is rank order. Spares are selected by the same rules. Raises
    UsageError.
    """
    if include is not None and exclude is not None:
        raise UsageError("--include and --exclude: use only one")
    text = exclude if include is None else include
    if text is None:
        return cluster
    flag = "--exclude" if include is None else "--include"
    chosen = _parse(flag, text, cluster)
    _refuse_unknown(flag, chosen, cluster)
    hosts, spares = (
        tuple(kept for host in each for kept in _kept(host, chosen, include is not None))
        for each in (cluster.hosts, cluster.spares)
    )
    if not hosts:
        raise UsageError(f"{flag} {text}: leaves no host of {cluster.source}")
    return dataclasses.replace(cluster, hosts=hosts, spares=spares)


def _parse(flag: str, text: str, cluster: Cluster) -> Chosen:
    names = {host.name.lower() for host in (*cluster.hosts, *cluster.spares)}
    chosen: dict[str, frozenset[int] | None] = {}
    for word in text.lower().split("@"):
        match = re.fullmatch(r"(.+?)(?::(\d{1,4}(?:,\d{1,4})*))?", word.strip(), re.ASCII)
        if match is None:
            raise UsageError(f"{flag} {text!r}: write host1@host2:0,2")
        name, ids = match[1], match[2]
        if word.strip() in names:  # the end of an IPv6 address may look like a list of GPUs
            name, ids = word.strip(), None
        if name in chosen:
            raise UsageError(f"{flag} {text!r}: names {name!r} twice")
        chosen[name] = frozenset(map(int, ids.split(","))) if ids else None
    return chosen


def _refuse_unknown(flag: str, chosen: Chosen, cluster: Cluster) -> None:
    """Raise UsageError unless the file has every named host and every named GPU."""
    every = (*cluster.hosts, *cluster.spares)
    for name, ids in chosen.items():
        entries = [host for host in every if host.name.lower() == name]
        if not entries:
            listed = ", ".join(dict.fromkeys(host.name for host in every))
            raise UsageError(f"{flag}: {cluster.source} has no host {name!r}; it has {listed}")
        if ids is None:
            continue
        if any(host.gpus == "all" for host in entries):
            if flag == "--exclude":
                raise UsageError(
                    f"{flag}: {name} has gpus: all, so the GPUs that are left are unknown; "
                    "write their number in the hosts file, or use --include"
                )
            continue
        if missing := ids - {gpu for host in entries for gpu in host.gpu_ids}:
            listed = ", ".join(map(str, sorted(missing)))
            raise UsageError(f"{flag}: {name} has no GPU {listed} in {cluster.source}")


def _kept(host: Host, chosen: Chosen, include: bool) -> Iterator[Host]:
    """Yield the host with the selected GPUs, or nothing if none is left."""
    named = chosen.get(host.name.lower(), frozenset())
    if not named:  # all of the host or nothing
        if include is (named is None):
            yield host
        return
    # GPUs cannot be excluded from `all`; that was refused before.
    among = sorted(named) if host.gpus == "all" else host.gpu_ids
    left = tuple(gpu for gpu in among if (gpu in named) is include)
    if left == host.gpu_ids and not include:
        yield host
    elif left:
        yield dataclasses.replace(host, gpus=left)
