"""What must hold between the values of a hosts file, when each of them is right by itself."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .problems import Problems

_SSH_KEYS = ("user", "port", "identity_file", "proxy_jump", "host_keys")


@dataclass(frozen=True)
class Entry:
    """One host as far as it could be read. own: what it says itself, without the defaults."""

    key: str
    line: int
    own: Mapping[str, Any]
    merged: Mapping[str, Any]

    @property
    def machine(self) -> tuple[str, int] | None:
        """What makes two entries the same machine."""
        name = self.merged.get("host")
        return (name.lower(), self.merged.get("port") or 22) if isinstance(name, str) else None


def check_rules(entries: Sequence[Entry], job: Mapping[str, Any], problems: Problems) -> None:
    for entry in entries:
        _local_has_no_ssh(entry, problems)
        _process_is_local(entry, job, problems)
        _processes_have_gpus(entry, job, problems)
    for i, entry in enumerate(entries):
        for earlier in entries[:i]:
            if entry.machine is not None and entry.machine == earlier.machine:
                _gpus_are_disjoint(earlier, entry, problems)
            else:
                _addresses_differ(earlier, entry, problems)


def check_job(job: Mapping[str, Any], lines: Mapping[str, int], problems: Problems) -> None:
    """lines: where each key of the job stands."""
    for key, target in (("dataset", "/data"), ("workdir", "/workspace")):
        for mount in job.get("mounts", ()):
            inside = mount.split(":")[1].rstrip("/") + "/"
            if key in job and inside.startswith(target + "/"):
                problems.add(
                    lines.get("mounts", 0),
                    "job.mounts",
                    f"found a mount at {target}, where {key} goes",
                    remedy=f"choose another place or remove {key}",
                )
    if job.get("engine") == "process" and job.get("mounts"):
        problems.add(
            lines.get("mounts", 0),
            "job.mounts",
            "found mounts with engine: process, which has no container",
            remedy="remove them, or use engine: docker",
        )


def _local_has_no_ssh(entry: Entry, problems: Problems) -> None:
    keys = [key for key in _SSH_KEYS if key in entry.own]
    if entry.merged.get("host") == "local" and keys:
        problems.add(
            entry.line,
            f"{entry.key}.{keys[0]}",
            f"found {', '.join(keys)} on host: local",
            allowed="gpus, internal_ip and interface on local",
            remedy="remove it: this machine is not reached by SSH",
        )


def _process_is_local(entry: Entry, job: Mapping[str, Any], problems: Problems) -> None:
    name = entry.merged.get("host")
    if job.get("engine") == "process" and name not in (None, "local"):
        problems.add(
            entry.line,
            f"{entry.key}.host",
            f"found {name} with engine: process",
            allowed="host: local with engine: process",
            remedy="use host: local, or engine: docker for other machines",
        )


def _processes_have_gpus(entry: Entry, job: Mapping[str, Any], problems: Problems) -> None:
    gpus, wanted = entry.merged.get("gpus"), job.get("nproc_per_node")
    count = len(gpus) if isinstance(gpus, tuple) else gpus
    if isinstance(count, int) and isinstance(wanted, int) and 0 < count < wanted:
        problems.add(
            entry.line,
            f"{entry.key}.gpus",
            f"found {count} GPU{'s' if count > 1 else ''} for job.nproc_per_node {wanted}",
            allowed="at most one process a GPU",
            remedy=f"give {wanted} GPUs here or set nproc_per_node: {count}",
        )


def _gpus_are_disjoint(earlier: Entry, entry: Entry, problems: Problems) -> None:
    one, two = (e.merged.get("gpus", "all") for e in (earlier, entry))
    if one == 0 or two == 0:
        return
    name = entry.merged["host"]
    if isinstance(one, tuple) and isinstance(two, tuple):
        shared = sorted(set(one) & set(two))
        if not shared:
            return
        found = f"GPU {', '.join(map(str, shared))} of {name} given to two nodes"
    else:
        found = f"{name} twice, with gpus: {_words(one)} and gpus: {_words(two)}"
    problems.add(
        entry.line,
        entry.key,
        f"found {found} (first on line {earlier.line})" if earlier.line else f"found {found}",
        allowed="the same machine twice only with disjoint lists of GPU ids, or gpus: 0",
        remedy="remove one, or write for example gpus: [0, 1] and gpus: [2, 3]",
    )


def _addresses_differ(earlier: Entry, entry: Entry, problems: Problems) -> None:
    address = entry.merged.get("internal_ip")
    if address is None or address != earlier.merged.get("internal_ip"):
        return
    if not ipaddress.ip_address(address).is_loopback:
        problems.add(
            entry.line,
            f"{entry.key}.internal_ip",
            f"found {address}, which {earlier.key} has too (line {earlier.line})",
            allowed="one machine an address",
            remedy="write each machine's own address",
        )


def _words(gpus: object) -> str:
    return str(list(gpus)) if isinstance(gpus, tuple) else str(gpus)
