"""What the hosts file says, as values: `Cluster`, its `Host`s and the `Job` they do together.

`load` is the way in from a command line and looks at the disk; `parse` is pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Literal

import yaml
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from .errors import HostsFileError

GIB = 1024**3
_STRICT = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True, config=_STRICT)
class Host:
    """One node. Its place in `Cluster.hosts` is its node rank."""

    host: str
    user: str | None = None
    port: int | None = None
    identity_file: str | None = None
    proxy_jump: str | None = None
    gpus: Literal["all"] | int | tuple[int, ...] = "all"
    internal_ip: str | None = None
    interface: str | None = None
    host_keys: Literal["ask", "accept-new"] = "ask"

    @property
    def is_local(self) -> bool:
        return self.host == "local"

    @property
    def name(self) -> str:
        return self.host


@dataclass(frozen=True, config=_STRICT)
class Job:
    """What every node runs. Paths are absolute; `shm_size` is in bytes, `stop_timeout` in seconds."""

    engine: Literal["docker", "process"] = "docker"
    image: str = "ddpctl-trainer:latest"
    workdir: str | None = None
    dataset: str | None = None
    command: tuple[str, ...] = ("-m", "trainer")
    resume_args: tuple[str, ...] = ()
    nproc_per_node: int | None = None
    master_port: int | Literal["auto"] = 29500
    env: Mapping[str, str] = field(default_factory=dict)
    env_file: str | None = None
    mounts: tuple[str, ...] = ()
    shm_size: int = 16 * GIB
    user: str = "host"
    max_restarts: int = 0
    stop_timeout: int = 60


@dataclass(frozen=True, config=_STRICT)
class Cluster:
    hosts: tuple[Host, ...]
    job: Job = field(default_factory=Job)
    spares: tuple[Host, ...] = ()
    source: str = "hosts.yaml"

    @property
    def nnodes(self) -> int:
        return len(self.hosts)


def parse(text: str, source: str) -> Cluster:
    """The cluster that `text` describes; HostsFileError names every problem in it."""
    try:
        document = yaml.safe_load(text)
        defaults = document.get("defaults") or {}
        job = {k: tuple(v) if isinstance(v, list) else v for k, v in (document.get("job") or {}).items()}
        hosts, spares = (
            tuple(_host(entry, defaults) for entry in document.get(key) or ())
            for key in ("hosts", "spares")
        )
        return Cluster(hosts=hosts, spares=spares, job=Job(**job), source=source)
    except (yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        raise HostsFileError([f"{source}: {error}"]) from None


def load(path: str | Path) -> Cluster:
    """Reads and checks the hosts file at `path`; HostsFileError when it cannot be used."""
    try:
        return parse(Path(path).read_text(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise HostsFileError([f"{path}: {error}; give a readable hosts file"]) from None


def _host(entry: object, defaults: Mapping[str, object]) -> Host:
    own = {"host": entry} if isinstance(entry, str) else dict(entry)  # type: ignore[call-overload]
    merged = {**defaults, **own}
    if isinstance(merged.get("gpus"), list):
        merged["gpus"] = tuple(merged["gpus"])
    return Host(**merged)
