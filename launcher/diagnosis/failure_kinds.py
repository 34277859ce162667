"""All kinds of first failure: meaning, remedy, whether a restart can help.

This is the only table of kinds, for the launcher and (in spec.json) for the supervisors. In run.json,
`first_failure.kind` is the value of a member. error_texts.txt has the error texts that mean a kind.
docs/troubleshooting.md shows the table; scripts/failure_kinds.py writes it there.
"""

from __future__ import annotations

import enum
from typing import Any

from ..supervisor.classify import Restart

ALWAYS, ONCE, ELSEWHERE = Restart.ALWAYS, Restart.ONCE, Restart.ELSEWHERE


class FailureKind(enum.StrEnum):
    """KIND = value, meaning, remedy[, whether a restart can help: never by default]"""

    meaning: str
    remedy: str
    restart: Restart

    def __new__(
        cls, value: str, meaning: str = "", remedy: str = "", restart: Restart = Restart.NEVER
    ) -> FailureKind:
        kind = str.__new__(cls, value)
        kind._value_, kind.meaning, kind.remedy, kind.restart = value, meaning, remedy, restart
        return kind

    # --- recognized by what the process printed ---

    GPU_FAILED = (
        "gpu-failed",
        "A GPU has a hardware fault.",
        "reset that GPU (`nvidia-smi -r`) or reboot its host, and replace the GPU if the fault returns",
        ELSEWHERE,
    )
    DEVICES_LOST = (
        "devices-lost",
        "The container lost its GPUs while it was running.",
        "`systemctl daemon-reload` on that host takes GPUs away from containers under Docker's systemd "
        "cgroup driver: resume the run, and use CDI or the cgroupfs driver on that host",
        ELSEWHERE,
    )
    NVML = (
        "nvml",
        "The NVIDIA driver changed while programs were using it.",
        "reboot that host, or resume the run once `nvidia-smi` works there again",
        ELSEWHERE,
    )
    FABRIC_MANAGER = (
        "fabric-manager",
        "CUDA did not start, because NVSwitch's fabric manager is not running (CUDA error 802).",
        "run `systemctl enable --now nvidia-fabricmanager` on that host, in the driver's version",
        ELSEWHERE,
    )
    CUDA_OOM = (
        "cuda-oom",
        "A GPU ran out of memory.",
        "reduce the batch size per rank, use --amp bf16 or gradient accumulation; `nvidia-smi` on that "
        "host shows which other processes use the GPU",
        ONCE,
    )
    CUDA_DRIVER = (
        "cuda-driver",
        "The NVIDIA driver does not support the CUDA version in the image.",
        "update the driver on that host, or use an image with an older CUDA; `nvidia-smi` shows the "
        "newest CUDA that the driver supports",
    )
    WRONG_ARCH = (
        "wrong-arch",
        "The image has no code for this GPU's architecture.",
        "use an image whose torch and extensions are built for this GPU: torch.cuda.get_arch_list() must "
        "contain its compute capability (RTX 50 and B200 need CUDA 12.8 or newer)",
    )
    CUDA_MISSING = (
        "cuda-missing",
        "The process found no GPU.",
        "that host has fewer GPUs than the job needs, or gives none to the job: run `ddpctl check`",
    )
    CUDA_ERROR = (
        "cuda-error",
        "A CUDA call failed.",
        "run again with --env CUDA_LAUNCH_BLOCKING=1 to see the line; if only one host is affected, look "
        "for Xid errors in its `dmesg`",
    )
    NCCL_USAGE = (
        "nccl-usage",
        "NCCL was used or set up wrongly.",
        "run again with --env NCCL_DEBUG=INFO to see which call NCCL rejects",
    )
    NETWORK_RDMA = (
        "network-rdma",
        "An RDMA connection (InfiniBand or RoCE) failed.",
        "the RDMA ports of these hosts cannot reach each other, or a link went down: check GIDs, routes "
        "and MTU, and try --env NCCL_IB_DISABLE=1; with separate rails, NCCL_CROSS_NIC=0",
        ALWAYS,
    )
    MEMLOCK = (
        "memlock",
        "The job may not lock enough memory for RDMA.",
        "set job.ulimits.memlock to -1, and raise memlock on that host for rootless engines and for "
        "jobs without a container (`ulimit -l` must be unlimited)",
    )
    COLLECTIVE_TIMEOUT = (
        "collective-timeout",
        "A rank did not reach a collective in time.",
        "`ddpctl stacks` shows where each rank of a live run is; --hang-timeout ends such a run sooner "
        "and names the straggler",
        ALWAYS,
    )
    PORT_IN_USE = (
        "port-in-use",
        "Another program holds the master port, or the supervisors' port, on node 0.",
        "choose another job.master_port, or auto",
    )
    DDP_USAGE = (
        "ddp-usage",
        "The script uses DistributedDataParallel or collectives wrongly.",
        "every rank must call the same collectives, in the same order, with the same sizes",
    )
    FILE_LIMIT = (
        "file-limit",
        "The process has too many open files.",
        "raise job.ulimits.nofile, for example to 65536, use fewer DataLoader workers, or call "
        'torch.multiprocessing.set_sharing_strategy("file_system")',
    )
    THREAD_LIMIT = (
        "thread-limit",
        "The process could not start another thread or process.",
        "raise job.ulimits.nproc and the engine's limit of processes on that host, or use fewer DataLoader "
        "workers and a smaller OMP_NUM_THREADS",
    )
    SHM_FULL = (
        "shm-full",
        "`/dev/shm` was full.",
        "/dev/shm is too small: raise job.shm_size, or use fewer DataLoader workers",
    )
    WORKER_KILLED = (
        "worker-killed",
        "A child process of a rank was killed, such as a DataLoader worker.",
        "most likely memory ran out: use fewer DataLoader workers, and look for `Out of memory` in `dmesg` "
        "on that host",
        ONCE,
    )
    DISK_FULL = (
        "disk-full",
        "A disk or a quota was full.",
        "the disk is full: free space on that host, or keep fewer checkpoints; "
        "after SemLock or shm_open it is /dev/shm: raise job.shm_size",
    )
    STORAGE = (
        "storage",
        "A file system returned an error: a network file system went away, or a disk is failing.",
        "look at `dmesg` and the mounts on that host, and at the file server",
        ONCE,
    )
    MEMORY = (
        "memory",
        "The process could not allocate host memory.",
        "reduce the batch size, or use fewer DataLoader workers",
        ONCE,
    )
    CREDENTIALS = (
        "credentials",
        "A service on the internet refused: not logged in, no access, or no such model.",
        "check the name, and pass the token in job.env_file (HF_TOKEN, WANDB_API_KEY)",
    )
    DOWNLOAD = (
        "download",
        "The process could not reach a service on the internet, or was over its limit.",
        "download before the run into a folder that job.mounts gives to every host, and set "
        "HF_HUB_OFFLINE=1; let one rank download, not all",
        ONCE,
    )
    COMPILER_MISSING = (
        "compiler-missing",
        "torch.compile, Triton or an extension needs a compiler, and the image has none.",
        "install gcc in the image (`apt-get install build-essential`), or use a -devel image for nvcc",
    )
    LIBRARY = (
        "library",
        "A shared library is missing in the image, or two libraries do not fit each other.",
        "install the library, or reinstall torch and the extension in matching versions, in the image",
    )
    MODULE_MISSING = (
        "module-missing",
        "Python could not import a module.",
        "install the module in the image, or add it to job.workdir",
    )
    FILE_DAMAGED = (
        "file-damaged",
        "A file is damaged or incomplete, such as a checkpoint after a full disk.",
        "remove that file: resume from an older checkpoint, or copy the data again",
    )
    CHECKPOINT = (
        "checkpoint",
        "A checkpoint does not fit the model or the torch version.",
        "resume with the code and the flags that wrote the checkpoint, or start without it",
    )
    DIVERGED = (
        "diverged",
        "The loss became infinite or NaN.",
        "lower the learning rate, warm up longer, clip gradients, or use bf16 instead of fp16",
    )
    USAGE = (
        "usage",
        "The script rejected its arguments.",
        "fix job.command, or what follows `--`",
    )
    FILE_MISSING = (
        "file-missing",
        "A file does not exist where the job runs.",
        "in a container, code is at /workspace and data at /data: see job.workdir, job.dataset and "
        "job.mounts; without one, use $DDPCTL_DATA_DIR and the working directory",
    )
    PERMISSION = (
        "permission",
        "The job's user has no permission to use a file.",
        "the job runs as job.user: give that user access, or change job.user",
    )

    # --- recognized by how a rank, torchrun, a container or a host ended ---

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
        "A rank crashed in native code (SIGSEGV, SIGABRT, SIGILL, SIGFPE or an uncaught C++ exception).",
        "the excerpt shows the Python line, if Python could still print it; after SIGILL, the image's "
        "binaries need a newer CPU than that host has",
        ALWAYS,
    )
    KILLED = (
        "killed",
        "A signal from outside killed a rank.",
        "find out which user or program on that host sent the signal",
        ALWAYS,
    )
    OOM_KILLED = (
        "oom-killed",
        "The kernel's OOM killer killed a rank.",
        "use less memory (fewer DataLoader workers, a smaller batch) or raise the limit",
        ONCE,
    )
    STOPPED = (
        "stopped",
        "A rank was stopped by SIGSTOP for longer than 8 s.",
        "find out what stopped the process: SIGSTOP, Ctrl-Z or a debugger",
        ALWAYS,
    )
    HUNG = (
        "hung",
        "The run made no progress.",
        "find out what that rank waits for (data, a lock, a disk): `ddpctl stacks` shows the ranks of "
        "a live run",
        ALWAYS,
    )
    PEER_GONE = (
        "peer-gone",
        "A rank lost its connection to another one, or never got one, and the evidence does not show why.",
        "look at the other hosts and the network between them",
        ALWAYS,
    )
    TORCHRUN = "torchrun", "torchrun itself failed.", ""
    START = (
        "start",
        "torchrun could not be started.",
        "the image or environment must contain Python and torch",
    )
    CONTAINER_KILLED = (
        "container-killed",
        "A container, or the supervisor of a node without one, was killed from outside.",
        "see dmesg and, with containers, `docker events` on that host; then `ddpctl resume`",
        ALWAYS,
    )
    TERMINATED = (
        "terminated",
        "A node was asked to stop, but not by ddpctl.",
        "a user stopped it, or its host or engine is shutting down",
        ALWAYS,
    )
    HOST_LOST = (
        "host-lost",
        "A host no longer answers the other nodes.",
        "check that the host, its engine and the network to it are up: `ddpctl check`",
        ALWAYS,
    )
    NETWORK_CUT = (
        "network-cut",
        "A host lost contact with the other nodes while it was still running.",
        "look at that host's network: its interface, cable, switch port and firewall",
        ALWAYS,
    )
    NEVER_JOINED = (
        "never-joined",
        "A node did not start, or could not reach node 0.",
        "that host's node did not start or cannot reach node 0: run `ddpctl check`",
        ALWAYS,
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
