"""The job: every key of `job:` in a hosts file, with its default."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Job:
    """What every node runs. Paths are absolute, sizes in bytes, times in seconds."""

    engine: str = "docker"
    python: str | None = None  # with engine: process, the path of a Python on the hosts
    conda: str | None = None  # with engine: process, the name of a conda environment on the hosts
    requirements: str | None = None  # a file that lists the packages to install on the hosts
    image: str = "ddpctl-trainer:latest"
    workdir: str | None = None
    dataset: str | None = None
    command: tuple[str, ...] = ("-m", "trainer")
    resume_args: tuple[str, ...] = ()
    nproc_per_node: int | None = None
    master_port: int | Literal["auto"] = "auto"
    env: Mapping[str, str] = field(default_factory=dict)
    env_file: str | None = None
    mounts: tuple[str, ...] = ()
    tmpfs: Mapping[str, int] = field(default_factory=dict)
    shm_size: int = 16 * 1024**3
    devices: tuple[str, ...] = ()
    cap_add: tuple[str, ...] = ()
    ulimits: Mapping[str, int] = field(default_factory=dict)
    pids_limit: int = 32768
    new_privileges: Literal["allow", "forbid"] = "forbid"
    user: str = "host"
    max_restarts: int = 0
    min_nodes: int | None = None  # None: all hosts
    stop_timeout: int = 60
    time_limit: int | None = None
    metrics_dir: str | None = None
    numa: Literal["auto", "off"] = "auto"
    torchrun_args: tuple[str, ...] = ()
