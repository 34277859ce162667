"""All kinds of first failure: meaning, remedy, whether a restart can help, log pattern.

This is the only table of kinds, for the launcher and (in spec.json) for the supervisors. In run.json,
`first_failure.kind` is the value of a member. docs/troubleshooting.md shows the table;
scripts/failure_kinds.py writes it there.
"""

from __future__ import annotations

import enum
from typing import Any

from ..supervisor.classify import KindTable, Restart

RESTARTABLE = Restart.ALWAYS  # the failure may not happen again; those of other kinds would


class FailureKind(enum.StrEnum):
    """KIND = value, meaning, remedy[, RESTARTABLE][, log pattern]

    The first log pattern that matches wins, so specific patterns come before general ones.
    """

    meaning: str
    remedy: str
    restart: Restart
    pattern: str | None

    def __new__(
        cls, value: str, meaning: str = "", remedy: str = "", *more: Restart | str
    ) -> FailureKind:
        kind = str.__new__(cls, value)
        kind._value_, kind.meaning, kind.remedy = value, meaning, remedy
        kind.restart = next((each for each in more if isinstance(each, Restart)), Restart.NEVER)
        kind.pattern = next((each for each in more if isinstance(each, str)), None)
        return kind

    # --- recognised by what the process printed ---

    SHM_FULL = (
        "shm-full",
        "`/dev/shm` was full.",
        "/dev/shm is too small: raise job.shm_size, or use fewer DataLoader workers",
        r"insufficient shared memory|unable to (write to|open|allocate) (file|shared memory).*/torch_"
        r"|/dev/shm/nccl.*(no space|failed)|shared memory segment /dev/shm"
        r"|DataLoader worker.*killed by signal: Bus error",
    )
    DISK_FULL = (
        "disk-full",
        "A disk or a quota was full.",
        "the disk is full: free space on that host, or keep fewer checkpoints",
        r"no space left on device|disk quota exceeded|errno 28\b|PytorchStreamWriter failed writing"
        r"|inline_container\.cc.*unexpected pos|iostream error",
    )
    NVML = (
        "nvml",
        "The NVIDIA driver changed while programs were using it.",
        "restart that host, or start a new container once `nvidia-smi` works there again",
        r"failed to initialize nvml|driver/library version mismatch|nvml: unknown error",
    )
    CUDA_OOM = (
        "cuda-oom",
        "A GPU ran out of memory.",
        "reduce the batch size per rank, use --amp bf16 or gradient accumulation; `nvidia-smi` on that "
        "host shows which other processes use the GPU",
        r"cuda out of memory|torch\.OutOfMemoryError|CUDA error: out of memory|HIP out of memory",
    )
    CUDA_MISSING = (
        "cuda-missing",
        "The process found no GPU, or the driver is too old.",
        "that host has fewer GPUs or an older driver than the job needs: run `ddpctl check`",
        r"no cuda gpus are available|not compiled with cuda|invalid device ordinal|no cuda-capable device"
        r"|found no nvidia driver|nvidia driver on your system is too old|cuda driver version is",
    )
    CUDA_ERROR = (
        "cuda-error",
        "A CUDA call failed.",
        "run again with --env CUDA_LAUNCH_BLOCKING=1 to see the line; if only one host is affected, look "
        "for Xid errors in its `dmesg`",
        r"CUDA error: |uncorrectable ecc|cudaErrorLaunchFailure|CUBLAS_STATUS|CUDNN_STATUS",
    )
    COLLECTIVE_TIMEOUT = (
        "collective-timeout",
        "A rank did not reach a collective in time.",
        "`ddpctl stacks` shows where each rank of a live run is; --hang-timeout ends such a run sooner "
        "and names the straggler",
        RESTARTABLE,
        r"watchdog caught collective operation timeout|timed out waiting \d+\s?ms for (recv|send)"
        r"|monitoredBarrier|collective.*timed out|Wait timeout",
    )
    PORT_IN_USE = (
        "port-in-use",
        "Another program holds the master port, or the supervisors' port, on node 0.",
        "choose another job.master_port, or auto",
        r"address already in use|EADDRINUSE",
    )
    MODULE_MISSING = (
        "module-missing",
        "Python could not import a module.",
        "install the module in the image, or add it to job.workdir",
        r"ModuleNotFoundError|No module named",
    )
    FILE_MISSING = (
        "file-missing",
        "A file does not exist in the container.",
        "the path must exist inside the container: code is at /workspace, data at /data; "
        "see job.workdir, job.dataset and job.mounts",
        r"FileNotFoundError|can't open file .*No such file|no such file or directory",
    )
    PERMISSION = (
        "permission",
        "The job's user has no permission to use a file.",
        "the job runs as job.user: give that user access, or change job.user",
        r"PermissionError|permission denied",
    )
    USAGE = (
        "usage",
        "The script rejected its arguments.",
        "fix job.command, or what follows `--`",
        r"^\S+: error: (unrecognized arguments|argument|the following arguments|invalid)",
    )
    MEMORY = (
        "memory",
        "The process could not allocate host memory.",
        "reduce the batch size, or use fewer DataLoader workers",
        r"\bMemoryError\b|cannot allocate memory|std::bad_alloc|DefaultCPUAllocator: can't allocate",
    )

    # --- recognised by how a rank, torchrun, a container or a host ended ---

    EXCEPTION = "exception", "A rank raised an exception that is not in this table.", ""
    EXIT_CODE = "exit-code", "A rank exited with a nonzero code.", ""
    EARLY_EXIT = (
        "early-exit",
        "A rank exited with code 0 while others were still running.",
        "every rank must run the same number of steps; a script that exits 0 after an error looks "
        "like this too",
    )
    SEGV = (
        "segv",
        "A rank crashed in native code.",
        "the excerpt shows the Python line, if Python could still print it",
    )
    KILLED = (
        "killed",
        "A signal from outside killed a rank.",
        "find out which user or program on that host sent the signal",
        RESTARTABLE,
    )
    OOM_KILLED = (
        "oom-killed",
        "The kernel's OOM killer killed a rank.",
        "use less memory (fewer DataLoader workers, a smaller batch) or raise the limit",
    )
    STOPPED = (
        "stopped",
        "A rank was stopped by SIGSTOP for longer than 8 s.",
        "find out what stopped the process: SIGSTOP, Ctrl-Z or a debugger",
        RESTARTABLE,
    )
    HUNG = (
        "hung",
        "The run made no progress within `--hang-timeout`.",
        "find out what that rank waits for (data, a lock, a disk): `ddpctl stacks` shows the ranks of "
        "a live run",
        RESTARTABLE,
    )
    PEER_GONE = (
        "peer-gone",
        "A rank lost its connection to another one, and the evidence does not show why.",
        "look at the other hosts and the network between them",
        RESTARTABLE,
    )
    TORCHRUN = "torchrun", "torchrun itself failed.", ""
    START = "start", "torchrun could not be started.", "the image must contain Python and torch"
    CONTAINER_KILLED = (
        "container-killed",
        "A container was killed from outside.",
        "see `docker events` and dmesg on that host, then `ddpctl resume`",
        RESTARTABLE,
    )
    TERMINATED = (
        "terminated",
        "A container was asked to stop, but not by ddpctl.",
        "a user stopped the container, or its host or engine is shutting down",
        RESTARTABLE,
    )
    HOST_LOST = (
        "host-lost",
        "A host no longer answers the other nodes.",
        "check that the host, its Docker Engine and the network to it are up: `ddpctl check`",
        RESTARTABLE,
    )
    NETWORK_CUT = (
        "network-cut",
        "A host lost contact with the other nodes while it was still running.",
        "look at that host's network: its interface, cable, switch port and firewall",
        RESTARTABLE,
    )
    NEVER_JOINED = (
        "never-joined",
        "A node did not start, or could not reach node 0.",
        "that host's container did not start or cannot reach node 0: run `ddpctl check`",
        RESTARTABLE,
    )
    TIME_LIMIT = (
        "time-limit",
        "The run reached its time limit, and ddpctl stopped it as `kill` does.",
        "raise job.time_limit, or continue with `ddpctl resume`",
    )
    SUPERVISOR = "supervisor", "ddpctl's supervisor failed.", "this is a bug in ddpctl: report it"

    @classmethod
    def named(cls, value: Any) -> FailureKind | None:
        """Return the kind with this value, or None if this version does not know it."""
        return next((kind for kind in cls if kind == value), None)


TABLE = KindTable([(kind.value, kind.restart.value, kind.pattern) for kind in FailureKind])
