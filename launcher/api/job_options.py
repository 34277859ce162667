"""The keys of `job:` in a hosts file, as keyword arguments of `launch` and `run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Literal, TypeAlias, TypedDict

Path: TypeAlias = str | PathLike[str]


class JobOptions(TypedDict, total=False):
    """Overrides of the keys in docs/hosts-file.md. Paths are relative to the current folder."""

    engine: Literal["docker", "process"]
    image: str
    workdir: Path
    dataset: Path
    resume_args: Sequence[str]
    nproc_per_node: int
    master_port: int | Literal["auto"]
    env: Mapping[str, str]
    env_file: Path
    mounts: Sequence[str]
    tmpfs: Mapping[str, str | int]
    shm_size: str | int
    devices: Sequence[str]
    cap_add: Sequence[str]
    ulimits: Mapping[str, int]
    user: str
    max_restarts: int
    metrics_dir: str
    stop_timeout: int
    time_limit: str | int
