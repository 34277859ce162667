"""`--include` and `--exclude`: select hosts and GPUs of a cluster in DeepSpeed's syntax. Pure.

`host1@host2:0,2` means all of host1, and GPUs 0 and 2 of host2. Hosts may be a range: gpu[1-4].
"""

import re
from dataclasses import replace

from ..errors import UsageError
from ..text import names, names_in, numbered, quoted
from .cluster import Cluster, Gpus, Host


def select(cluster: Cluster, include: str | None, exclude: str | None) -> Cluster:
    """Return the cluster reduced to the hosts and GPUs of `include`, or without those of `exclude`.

    Hosts keep their order, which is rank order. Spares are selected by the same rules. Raises
    UsageError if a host or GPU does not exist, or if no host is left.
    """
    if include is not None and exclude is not None:
        raise UsageError("--include and --exclude cannot be combined", "pass one of them")
    flag, text = ("--exclude", exclude) if include is None else ("--include", include)
    if text is None:
        return cluster
    chosen = _parse(flag, text, cluster)

    def kept(hosts: tuple[Host, ...]) -> tuple[Host, ...]:
        selected = ((host, _gpus_of(host, chosen, flag == "--include")) for host in hosts)
        return tuple(replace(host, gpus=gpus) for host, gpus in selected if gpus is not None)

    if not (hosts := kept(cluster.hosts)):
        raise UsageError(f"{flag} {text}: leaves no host of {cluster.source}", "keep at least one")
    return replace(cluster, hosts=hosts, spares=kept(cluster.spares))


def _parse(flag: str, text: str, cluster: Cluster) -> dict[str, set[int]]:
    """Return the chosen GPU ids by lower-case host name. An empty set means the whole host."""
    by_name: dict[str, list[Host]] = {}
    for host in (*cluster.hosts, *cluster.spares):
        by_name.setdefault(host.name.lower(), []).append(host)
    chosen: dict[str, set[int]] = {}
    words = [word for part in text.lower().split("@") for word in names_in(part.strip())]
    for word in words:
        match = re.fullmatch(r"(.+?)(?::(\d{1,4}(?:,\d{1,4})*))?", word, re.ASCII)
        if match is None:
            raise UsageError(f"{flag} {quoted(text)}: not a list of hosts", "pass host1@host2:0,2")
        # the end of an IPv6 address may look like a list of GPUs
        name, listed = (word, None) if word in by_name else match.groups()
        if name in chosen:
            raise UsageError(f"{flag} {quoted(text)}: names {name!r} twice", "name it once")
        if name not in by_name:
            remedy = f"name one of {names(entries[0].name for entries in by_name.values())}"
            if "," in name:
                remedy = f"separate hosts with @: {flag} {name.replace(',', '@')}"
            raise UsageError(f"{flag}: {cluster.source} has no host {name!r}", remedy)
        chosen[name] = ids = set(map(int, listed.split(","))) if listed else set()
        has_all = any(host.gpus == "all" for host in by_name[name])
        if ids and has_all and flag == "--exclude":
            raise UsageError(
                f"{flag}: {name} has gpus: all, so it is unknown which GPUs would be left",
                "give their number in the hosts file, or use --include",
            )
        missing = ids.difference(*(host.gpu_ids for host in by_name[name]))
        if missing and not has_all:
            raise UsageError(
                f"{flag}: {name} has no {numbered('GPU', missing)} in {cluster.source}",
                "name GPUs that the file lists for that host",
            )
    return chosen


def _gpus_of(host: Host, chosen: dict[str, set[int]], include: bool) -> Gpus | None:
    """Return the new value of `gpus` for the host, or None if the host is not selected."""
    ids = chosen.get(host.name.lower())
    if not ids:  # not named, or named as a whole
        return host.gpus if include is (ids is not None) else None
    among = sorted(ids) if host.gpus == "all" else host.gpu_ids
    rest = tuple(gpu for gpu in among if (gpu in ids) is include)
    return host.gpus if rest == host.gpu_ids and not include else rest or None
