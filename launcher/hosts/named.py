"""The cluster that a command or a program names, with what it overrides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from ..errors import UsageError
from .hostfile import HostList
from .load import COMMAND_LINE, load, override_job
from .model import Cluster
from .select import select

DEFAULT_HOSTS = "hosts.yaml"
Hosts: TypeAlias = str | Path | Sequence[str] | Cluster | None


def cluster_of(
    hosts: Hosts,
    job: Mapping[str, object],
    include: str | None = None,
    exclude: str | None = None,
    *,
    source: str = COMMAND_LINE,
) -> Cluster:
    """The chosen hosts, with `job` over the file's job; None as a value leaves the file's.

    hosts: a file, a list such as "gpu1:8,gpu2:8" or ["gpu1:8", "gpu2:8"], a cluster that was read
    before, or None for ./hosts.yaml. source: who gave `job`, for messages. Raises UsageError.
    """
    if not isinstance(hosts, Cluster):
        overridden = [key for key, value in job.items() if value is not None]
        hosts = load(_file_or_list(hosts), overridden=overridden)
    return override_job(select(hosts, include, exclude), job, source=source)


def _file_or_list(hosts: str | Path | Sequence[str] | None) -> str | Path:
    if hosts is None:
        return default_hosts()
    return hosts if isinstance(hosts, (str, Path)) else HostList(",".join(hosts))


def default_hosts() -> str:
    """./hosts.yaml. Raises UsageError if there is none."""
    if not Path(DEFAULT_HOSTS).is_file():
        raise UsageError(
            "no hosts: give a hosts file (`ddpctl init` writes one) or -H gpu1:8,gpu2:8"
        )
    return DEFAULT_HOSTS
