"""What the last lines of a failed process say: known causes with their remedies, and effects. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

EXCERPT_LINES = 20

RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")  # torch's own excepthook puts it before each line
TRACEBACK = re.compile(r"^Traceback \(most recent call last\):")
NOISE = re.compile(
    r"^(\[?[WIE]\d{4} \d\d:\d\d|\[rank\d+\]:\[|frame #|Exception raised from"
    r"|terminate called|Fatal Python error|$)"
)


@dataclass(frozen=True)
class Sign:
    """A cause that is known by its words."""

    kind: str
    words: re.Pattern[str]
    remedy: str


def _sign(kind: str, words: str, remedy: str) -> Sign:
    return Sign(kind, re.compile(words, re.IGNORECASE | re.MULTILINE), remedy)


# The first that matches is taken: the specific ones come before the general ones.
SIGNS = (
    _sign(
        "shm-full",
        r"insufficient shared memory|unable to (write to|open|allocate) (file|shared memory).*/torch_"
        r"|/dev/shm/nccl.*(no space|failed)|shared memory segment /dev/shm"
        r"|DataLoader worker.*killed by signal: Bus error",
        "/dev/shm is too small: raise job.shm_size, or use fewer DataLoader workers",
    ),
    _sign(
        "disk-full",
        r"no space left on device|disk quota exceeded|errno 28\b|PytorchStreamWriter failed writing"
        r"|inline_container\.cc.*unexpected pos|iostream error",
        "the disk is full: free space on that host, or keep fewer checkpoints",
    ),
    _sign(
        "nvml",
        r"failed to initialize nvml|driver/library version mismatch|nvml: unknown error",
        "the NVIDIA driver was changed under running programs: restart that host, or start a new "
        "container after the driver is whole again (`nvidia-smi` must work there)",
    ),
    _sign(
        "cuda-oom",
        r"cuda out of memory|torch\.OutOfMemoryError|CUDA error: out of memory|HIP out of memory",
        "the GPU's memory is too small: a smaller batch a rank, --amp bf16, or gradient "
        "accumulation; `nvidia-smi` on that host shows who else uses it",
    ),
    _sign(
        "cuda-missing",
        r"no cuda gpus are available|not compiled with cuda|invalid device ordinal|no cuda-capable device"
        r"|found no nvidia driver|nvidia driver on your system is too old|cuda driver version is",
        "that host offers fewer GPUs, or an older driver, than the job needs: see `ddpctl check`",
    ),
    _sign(
        "cuda-error",
        r"CUDA error: |uncorrectable ecc|cudaErrorLaunchFailure|CUBLAS_STATUS|CUDNN_STATUS",
        "run again with --env CUDA_LAUNCH_BLOCKING=1 to see the line; if it is one host only, look "
        "for Xid errors in its `dmesg`",
    ),
    _sign(
        "collective-timeout",
        r"watchdog caught collective operation timeout|timed out waiting \d+\s?ms for (recv|send)"
        r"|monitoredBarrier|collective.*timed out|Wait timeout",
        "some rank did not arrive at a collective: `ddpctl stacks` shows where each one stands as long "
        "as the run lives; --hang-timeout ends such a run sooner, and names that rank",
    ),
    _sign(
        "port-in-use",
        r"address already in use|EADDRINUSE",
        "another program holds that port on node 0: choose another job.master_port, or auto",
    ),
    _sign(
        "module-missing",
        r"ModuleNotFoundError|No module named",
        "the image lacks that module, or job.workdir does not hold it",
    ),
    _sign(
        "file-missing",
        r"FileNotFoundError|can't open file .*No such file|no such file or directory",
        "the path must exist inside the container: code is at /workspace, data at /data; "
        "see job.workdir, job.dataset and job.mounts",
    ),
    _sign(
        "permission",
        r"PermissionError|permission denied",
        "the job runs as job.user: give that user access, or change job.user",
    ),
    _sign(
        "usage",
        r"^\S+: error: (unrecognized arguments|argument|the following arguments|invalid)",
        "the command's arguments are wrong: mend job.command, or what follows `--`",
    ),
    _sign(
        "memory",
        r"\bMemoryError\b|cannot allocate memory|std::bad_alloc|DefaultCPUAllocator: can't allocate",
        "the host's memory is too small: a smaller batch, or fewer DataLoader workers",
    ),
)

# What the ranks say when somebody else has gone: they follow a cause, they are none.
EFFECT = re.compile(
    r"connection closed by peer|connection reset by peer|broken ?pipe|connection refused"
    r"|remote process exited or there was a network error|ncclRemoteError"
    r"|nccl communicator (was|is) aborted|process group.*(aborted|destroyed)"
    r"|failed to recv, got 0 bytes|recvValue failed|sendBytes failed|recvVector failed"
    r"|DistNetworkError|DistStoreError|Socket Timeout|socket (has )?timed out"
    r"|application timeout caused pair closure|RendezvousConnectionError|RendezvousTimeoutError"
    r"|RendezvousClosedError|SignalException|connectFullMesh failed|no route to host",
    re.IGNORECASE,
)


def is_effect(lines: Sequence[str]) -> bool:
    """The process ended because another one had gone before."""
    said = exception_lines(lines)
    return bool(EFFECT.search("\n".join(said) if said else "\n".join(lines[-EXCERPT_LINES:])))


def known_sign(lines: Sequence[str]) -> Sign | None:
    """By the exception's own words first; only without an exception by anything that was said."""
    said = exception_lines(lines) or list(lines[-EXCERPT_LINES:])
    text = "\n".join(RANK_PREFIX.sub("", line) for line in said)
    return next((sign for sign in SIGNS if sign.words.search(text)), None)


def exception_line(lines: Sequence[str]) -> str:
    """`ValueError: boom`, or "". What a DataLoader's worker raised is at the end of its own story."""
    said = exception_lines(lines)
    if said and ": Caught " in said[0] and len(said) > 1:
        return f"{said[-1]} ({said[0].partition(' in ')[2].rstrip('.')})"
    return said[0] if said else ""


def exception_lines(lines: Sequence[str]) -> list[str]:
    """The exception's own words, `ValueError: boom` and what follows it; [] without a traceback."""
    block = _last_traceback(lines)
    for index, line in enumerate(block):
        if index and line and not line.startswith((" ", "\t")):
            return _without_noise(block[index:])
    return []


def excerpt(lines: Sequence[str]) -> list[str]:
    """What to show of the end of a rank: its last traceback, else its last lines."""
    block = _without_noise(_last_traceback(lines))
    if len(block) > EXCERPT_LINES:  # the message is at the end, the way into it at the beginning
        half = EXCERPT_LINES // 2
        block = [*block[:half], f"... {len(block) - EXCERPT_LINES} lines ...", *block[-half:]]
    return block or [RANK_PREFIX.sub("", line) for line in lines[-EXCERPT_LINES:]]


def _last_traceback(lines: Sequence[str]) -> list[str]:
    clean = [RANK_PREFIX.sub("", line) for line in lines]
    starts = [index for index, line in enumerate(clean) if TRACEBACK.match(line)]
    return clean[starts[-1] :] if starts else []


def _without_noise(block: Sequence[str]) -> list[str]:
    """Cut at the first line that is a log's, a C++ frame's or empty."""
    end = next((i for i, line in enumerate(block) if i and NOISE.match(line)), len(block))
    return list(block[:end])
