"""All kinds of first failure: meaning, remedy, whether a restart can help.

They are in failure_kinds.txt, the only table of kinds, for the launcher and (in spec.json) for the
supervisors. In run.json, `first_failure.kind` is the value of a member. error_texts.txt has the error
texts that mean a kind. docs/troubleshooting.md shows the table; scripts/failure_kinds.py writes it
there.
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any

from .classify import Restart
from .text_table import table_entries


def parse_kinds(text: str) -> dict[str, tuple[Restart, str, str]]:
    """Return whether a restart can help, the meaning and the remedy of each kind.

    The head of an entry is `KIND (RESTART)`, or `KIND` if a restart cannot help.
    """
    kinds = {}
    for head, meaning, remedy in table_entries(text):
        kind, _, restart = head.removesuffix(")").partition(" (")
        kinds[kind] = Restart(restart or "no"), meaning, remedy
    return kinds


KINDS = parse_kinds(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8"))


class FailureKind(enum.StrEnum):
    """A kind of first failure. Each one is an entry of failure_kinds.txt."""

    restart: Restart
    meaning: str
    remedy: str

    def __new__(cls, value: str) -> FailureKind:
        kind = str.__new__(cls, value)
        kind._value_ = value
        kind.restart, kind.meaning, kind.remedy = KINDS[value]
        return kind

    # recognized by what the process printed
    GPU_FAILED = "gpu-failed"
    DEVICES_LOST = "devices-lost"
    NVML = "nvml"
    FABRIC_MANAGER = "fabric-manager"
    CUDA_OOM = "cuda-oom"
    CUDA_DRIVER = "cuda-driver"
    WRONG_ARCH = "wrong-arch"
    CUDA_MISSING = "cuda-missing"
    CUDA_ERROR = "cuda-error"
    NCCL_USAGE = "nccl-usage"
    NETWORK_RDMA = "network-rdma"
    MEMLOCK = "memlock"
    COLLECTIVE_TIMEOUT = "collective-timeout"
    PORT_IN_USE = "port-in-use"
    DDP_USAGE = "ddp-usage"
    FILE_LIMIT = "file-limit"
    THREAD_LIMIT = "thread-limit"
    SHM_FULL = "shm-full"
    WORKER_KILLED = "worker-killed"
    DISK_FULL = "disk-full"
    STORAGE = "storage"
    MEMORY = "memory"
    CREDENTIALS = "credentials"
    DOWNLOAD = "download"
    COMPILER_MISSING = "compiler-missing"
    LIBRARY = "library"
    MODULE_MISSING = "module-missing"
    FILE_DAMAGED = "file-damaged"
    CHECKPOINT = "checkpoint"
    DIVERGED = "diverged"
    USAGE = "usage"
    FILE_MISSING = "file-missing"
    PERMISSION = "permission"

    # recognized by how a rank, torchrun, a container or a host ended
    EXCEPTION = "exception"
    EXIT_CODE = "exit-code"
    EARLY_EXIT = "early-exit"
    SEGV = "segv"
    KILLED = "killed"
    OOM_KILLED = "oom-killed"
    STOPPED = "stopped"
    HUNG = "hung"
    PEER_GONE = "peer-gone"
    TORCHRUN = "torchrun"
    START = "start"
    CONTAINER_KILLED = "container-killed"
    TERMINATED = "terminated"
    HOST_LOST = "host-lost"
    NETWORK_CUT = "network-cut"
    NEVER_JOINED = "never-joined"
    TIME_LIMIT = "time-limit"
    SUPERVISOR = "supervisor"

    @classmethod
    def named(cls, value: Any) -> FailureKind | None:
        """Return the kind with this value, or None if this version does not know it."""
        return next((kind for kind in cls if kind == value), None)
