"""The contents of a hosts file as values: a `Cluster`, its `Host`s and their `Job` (job.py)."""

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import yaml

from ..text import duration
from .job import Job

Gpus: TypeAlias = Literal["all"] | int | tuple[int, ...]


@dataclass(frozen=True)
class Host:
    """One entry of a hosts file: the host of one node, or a spare. host: its name, as written.

    Its index in `Cluster.hosts` is the node rank. A machine with several entries has several nodes.
    """

    host: str
    user: str | None = None
    port: int | None = None
    identity_file: str | None = None
    proxy_jump: str | None = None
    gpus: Gpus = "all"
    nproc_per_node: int | None = None
    internal_ip: str | None = None
    interface: str | None = None
    host_keys: Literal["ask", "accept-new"] = "ask"

    @property
    def is_local(self) -> bool:
        return self.host == "local"

    @property
    def machine(self) -> tuple[str, int]:
        """The identity of the machine: its name in lower case and its SSH port (22 if not given)."""
        return self.host.lower(), self.port or 22

    @property
    def account(self) -> tuple[str | None, str, int]:
        """The identity of the home folder: the user and the machine."""
        return self.user, *self.machine

    @property
    def gpu_ids(self) -> tuple[int, ...]:
        """The ids of the GPUs: 0 to n-1 for a count n, () for `all`."""
        if isinstance(self.gpus, tuple):
            return self.gpus
        return () if self.gpus == "all" else tuple(range(self.gpus))

    @property
    def written_gpus(self) -> str:
        """The value of `gpus` in the syntax of a hosts file."""
        return str(list(self.gpus)) if isinstance(self.gpus, tuple) else str(self.gpus)

    @property
    def name(self) -> str:
        """The host's name in log lines and messages."""
        return self.host


@dataclass(frozen=True)
class Cluster:
    """The contents of a hosts file. hosts: by node rank. spares: replacements for unusable hosts.

    source: the file's name. replaced: the file's dataset and env_file if flags name others.
    """

    hosts: tuple[Host, ...]
    job: Job = field(default_factory=Job)
    spares: tuple[Host, ...] = ()
    source: str = "hosts.yaml"
    replaced: tuple[str, ...] = field(default=(), compare=False)

    @property
    def nnodes(self) -> int:
        return len(self.hosts)


def dump(cluster: Cluster) -> str:
    """Return a hosts file for the cluster: defaults merged, paths absolute, default values omitted.

    `parse` turns it into an equal cluster.
    """
    document = {
        "hosts": [changed(host, Host("")) for host in cluster.hosts],
        "spares": [changed(host, Host("")) for host in cluster.spares],
        "job": changed(cluster.job, Job()),
    }
    document = {name: section for name, section in document.items() if section}
    # YAML would fold U+0085 and similar characters into a space, so they are escaped. Long lines
    # are not folded, because an argument may contain any number of spaces.
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=False, width=2**31 - 1)


def changed(part: Host | Job, default: Host | Job) -> dict[str, Any]:
    """Return the values that differ from the default, as they are written in a hosts file."""
    values = {k: v for k, v in vars(part).items() if v != getattr(default, k)}
    if "time_limit" in values:
        values["time_limit"] = duration(values["time_limit"])
    return values
