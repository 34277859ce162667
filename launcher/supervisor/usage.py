"""This node's software, the load of its CPUs and GPUs, its memory limit and its free disk space."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import site
import subprocess
import sys
import time
from collections import deque
from dataclasses import fields

from .events import Environment, GpuLoad, ResourceUsage, Usage
from .proc import descendants, read_text, usage
from .spec import Spec

INTERVAL = 10.0  # seconds; without persistence mode, nvidia-smi takes up to a second of CPU time
PACKAGES = ["torch", "torchvision", "numpy", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "lightning"]
PACKAGES += ["accelerate", "deepspeed", "transformers"]
# The folder that pip creates for a package. importlib.metadata reads it too, but imports slowly.
INSTALLED = re.compile(r"([^-]+)-([^-]+)(?:-py[^-]*)?\.(?:dist|egg)-info")
GPU_FIELDS = "utilization.gpu,memory.used,memory.total,clocks.sm,temperature.gpu"
GPU_FIELDS += ",ecc.errors.uncorrected.volatile.total"  # in the order of GpuLoad's fields
NVIDIA_SMI = ["nvidia-smi", "--query-gpu=" + GPU_FIELDS, "--format=csv,noheader,nounits"]
_NUMBER = re.compile("[0-9]{1,9}")


def environment() -> Environment:
    """Return the node's software.

    The packages are those of this Python, which usually runs torchrun too.
    """
    versions = {"python": "%d.%d.%d" % sys.version_info[:3], "kernel": os.uname().release}
    installed: dict[str, str] = {}
    prefixes = [os.path.dirname(os.path.dirname(sys.executable)), sys.prefix]
    for path in site.getsitepackages(prefixes):
        for package in map(INSTALLED.fullmatch, os.listdir(path) if os.path.isdir(path) else ()):
            if package:
                installed.setdefault(package[1].lower().replace("_", "-"), package[2])
    versions.update((name, installed[name]) for name in PACKAGES if name in installed)
    driver = re.match(r".*Kernel Module\D+([0-9.]+)", read_text("/proc/driver/nvidia/version"))
    if driver:
        versions["nvidia driver"] = driver[1]
    return Environment(versions, tuple(sorted(os.environ)))


class Sampler:
    """Takes a sample every INTERVAL. nvidia-smi runs in the background, so nothing waits for it."""

    def __init__(self) -> None:
        self._next = time.monotonic() + INTERVAL / 2
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        self._command = NVIDIA_SMI + (["--id=" + visible] if visible else [])
        if visible == "":
            self._command = []
        self._asked: subprocess.Popen[bytes] | None = None
        self._at = time.monotonic()
        self._cpu: dict[int, float] = {}  # CPU seconds by pid
        self._minute: deque[tuple[GpuLoad, ...]] = deque(maxlen=round(60 / INTERVAL))

    def turn(self) -> Usage | None:
        """Return a sample if one is due, else None."""
        now = time.monotonic()
        if now < self._next and (self._asked is None or self._asked.poll() is None):
            return None
        asked, self._asked = self._asked, None
        if asked is None or asked.returncode == -signal.SIGKILL:
            self._next = now + INTERVAL
            self._asked = self._ask()
            return None if self._asked else Usage(self._cores(now))
        if asked.poll() is None:  # the driver is hanging
            asked.kill()  # without effect while it waits for the driver; so start no other
            self._asked, self._next = asked, now + INTERVAL
            return Usage(self._cores(now))
        assert asked.stdout
        with asked.stdout as answer:
            gpus = parse_gpus(answer.read())
        self._minute.append(gpus)
        return Usage(self._cores(now), gpus, means(self._minute))

    def _ask(self) -> subprocess.Popen[bytes] | None:
        """Start nvidia-smi. Return None if the node does not have it or the run has no GPU."""
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        with contextlib.suppress(OSError):
            if self._command:
                return subprocess.Popen(self._command, stdin=null, stdout=pipe, stderr=null)
        self._command = []
        return None

    def _cores(self, now: float) -> float:
        """Return how many CPU cores our descendants kept busy since the last sample."""
        before, past = self._cpu, now - self._at
        self._cpu = {pid: usage(pid)[1] for pid in descendants(os.getpid())}
        self._at = now
        spent = sum(cpu - min(cpu, before.get(pid, 0.0)) for pid, cpu in self._cpu.items())
        return round(spent / past, 2) if past > 0 else 0.0


def means(samples: deque[tuple[GpuLoad, ...]]) -> tuple[GpuLoad, ...]:
    """Return the mean load of each GPU, or () if samples are missing or have different GPUs."""
    if len(samples) != samples.maxlen or len({len(sample) for sample in samples}) != 1:
        return ()

    def mean(gpu: int, name: str) -> int:
        total: int = sum(getattr(sample[gpu], name) for sample in samples)
        return total // len(samples)

    names = [field.name for field in fields(GpuLoad)]
    return tuple(GpuLoad(*(mean(gpu, name) for name in names)) for gpu, _ in enumerate(samples[0]))


def parse_gpus(text: bytes) -> tuple[GpuLoad, ...]:
    """Parse nvidia-smi's rows. Their columns are GpuLoad's fields, of which three are required.

    A value such as [N/A] becomes 0. Skips malformed rows.
    """
    gpus = []
    for line in text.decode(errors="replace").splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        known = (c.startswith("[") or _NUMBER.fullmatch(c) for c in cells[1:])  # [N/A]
        if 3 <= len(cells) <= len(fields(GpuLoad)) and all(known):
            gpus.append(GpuLoad(*(int(c) if _NUMBER.fullmatch(c) else 0 for c in cells)))
    return tuple(gpus)


def resource_usage(spec: Spec, kills_before: int) -> ResourceUsage:
    """Return the state of resources that can run out.

    kills_before: oom_kills() before torchrun started.
    """
    disks = {"shm": "/dev/shm", "checkpoints": spec.checkpoint_dir}
    disks.update(output=spec.output_dir, logs=spec.dir)
    limit = memory_figure("memory.max", "memory.limit_in_bytes")
    return ResourceUsage(
        oom_kills=oom_kills() - kills_before,
        memory_limit=limit if 0 < limit < 1 << 60 else None,
        free={name: free_bytes(path) for name, path in disks.items()},
    )


def oom_kills() -> int:
    """Return the number of OOM kills in this container or session so far."""
    return memory_figure("memory.events", "memory.oom_control", "oom_kill ")


def memory_figure(version2: str, version1: str, label: str = "") -> int:
    """Return the number after `label` in a file of our memory cgroup, or 0 if there is none.

    version2, version1: the file's name in cgroup v2 and v1.
    """
    for line in read_text("/proc/self/cgroup").splitlines():
        _, controller, path = line.split(":", 2)
        if controller in ("", "memory"):
            root = os.path.join("/sys/fs/cgroup", controller)
            for folder in (root + path, root):  # a container may see only the root
                text = read_text(os.path.join(folder, version1 if controller else version2))
                figure = re.search(r"^%s(\d+)$" % label, text, re.MULTILINE)
                if figure:
                    return int(figure[1])
    return 0


def free_bytes(path: str) -> int | None:
    with contextlib.suppress(OSError):
        disk = os.statvfs(path)
        return disk.f_bavail * disk.f_frsize
    return None
