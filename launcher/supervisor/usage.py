"""This node's software, the load of its CPUs and GPUs, and its free memory and disk space."""

from __future__ import annotations

import os
import re
import site
import subprocess
import sys
import time

from .events import Environment, Gpu, ResourceUsage, Usage
from .proc import descendants, usage
from .spec import Spec

INTERVAL = 10.0  # seconds; without persistence mode, nvidia-smi uses up to a second of a core
PACKAGES = ["torch", "torchvision", "numpy", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "lightning"]
PACKAGES += ["accelerate", "deepspeed", "transformers"]
# The folder or file that pip leaves. importlib.metadata would read it too, but is slow to import.
INSTALLED = re.compile(r"([^-]+)-([^-]+)(?:-py[^-]*)?\.(?:dist|egg)-info")
NVIDIA_SMI = ["nvidia-smi", "--query-gpu=utilization.gpu,memory.used,memory.total"]
NVIDIA_SMI += ["--format=csv,noheader,nounits"]
_NUMBER = re.compile("[0-9]{1,9}")


def environment() -> Environment:
    """Describe the software. Packages are those of the Python that runs this, usually torchrun's."""
    versions = {"python": "%d.%d.%d" % sys.version_info[:3], "kernel": os.uname().release}
    installed: dict[str, str] = {}
    for path in site.getsitepackages(
        [os.path.dirname(os.path.dirname(sys.executable)), sys.prefix]
    ):
        for found in map(INSTALLED.fullmatch, os.listdir(path) if os.path.isdir(path) else ()):
            if found:
                installed.setdefault(found[1].lower().replace("_", "-"), found[2])
    versions.update((name, installed[name]) for name in PACKAGES if name in installed)
    try:
        with open("/proc/driver/nvidia/version") as file:
            driver = re.search(r"Kernel Module\D+([0-9.]+)", file.readline())
            if driver:
                versions["nvidia driver"] = driver.group(1)
    except OSError:
        pass
    return Environment(versions, tuple(sorted(os.environ)))


class Sampler:
    """Takes a sample every INTERVAL. nvidia-smi runs in the background, so nothing waits for it."""

    def __init__(self) -> None:
        self._next = time.monotonic() + INTERVAL / 2
        self._asked: subprocess.Popen[bytes] | None = None
        # no device is visible
        self._has_gpus = os.environ.get("CUDA_VISIBLE_DEVICES") != ""
        self._at = time.monotonic()
        self._cpu: dict[int, float] = {}  # CPU seconds by pid

    def turn(self) -> Usage | None:
        """Return a sample if one is due, else None."""
        now = time.monotonic()
        if self._asked is None and now >= self._next:
            self._next = now + INTERVAL
            self._ask()
            if self._asked is None:
                return Usage(self._cores(now))
        if self._asked is None or (self._asked.poll() is None and now < self._next):
            return None
        asked, self._asked = self._asked, None
        if asked.returncode is None:  # the driver hangs
            asked.kill()
            return Usage(self._cores(now))
        assert asked.stdout is not None
        with asked.stdout as answer:
            return Usage(self._cores(now), parse_gpus(answer.read()))

    def _ask(self) -> None:
        if not self._has_gpus:
            return
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        try:
            self._asked = subprocess.Popen(
                NVIDIA_SMI + (["--id=" + visible] if visible else []),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            self._has_gpus = False

    def _cores(self, now: float) -> float:
        """Return how many CPU cores our descendants kept busy since the last sample."""
        before, past = self._cpu, now - self._at
        self._cpu = {pid: usage(pid)[1] for pid in descendants(os.getpid())}
        self._at = now
        spent = sum(cpu - min(cpu, before.get(pid, 0.0)) for pid, cpu in self._cpu.items())
        return round(spent / past, 2) if past > 0 else 0.0


def parse_gpus(text: bytes) -> tuple[Gpu, ...]:
    """Parse nvidia-smi's rows `use, used, total`; () without a readable row."""
    found = []
    for line in text.decode(errors="replace").splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 3 and all(c == "[N/A]" or _NUMBER.fullmatch(c) for c in cells[1:]):
            found.append(Gpu(*(int(c) if _NUMBER.fullmatch(c) else 0 for c in cells)))
    return tuple(found)


class Resources:
    """Resources that can run out: memory, and space on disks."""

    def __init__(self, spec: Spec) -> None:
        self._disks = {
            "shm": "/dev/shm",
            "checkpoints": spec.checkpoint_dir,
            "output": spec.output_dir,
            "logs": spec.dir,
        }
        self._groups = memory_groups()
        self._kills_before = self._kills()

    def oom_kills(self) -> int:
        """Return the number of OOM kills since the start in this container or session."""
        return self._kills() - self._kills_before

    def usage(self) -> ResourceUsage:
        limit = self._number(("memory.max", "memory.limit_in_bytes"), "")
        return ResourceUsage(
            oom_kills=self.oom_kills(),
            memory_limit=limit if 0 < limit < 1 << 60 else None,
            free={name: free_bytes(path) for name, path in self._disks.items() if path},
        )

    def _kills(self) -> int:
        return self._number(("memory.events", "memory.oom_control"), "oom_kill ")

    def _number(self, names: tuple[str, ...], label: str) -> int:
        """Return the number after `label` in the first existing file; 0 without one."""
        for path in (os.path.join(group, name) for group in self._groups for name in names):
            try:
                with open(path) as file:
                    lines = file.read().splitlines()
            except OSError:
                continue
            for line in lines:
                if line.startswith(label) and line[len(label) :].isdigit():
                    return int(line[len(label) :])
        return 0


def memory_groups() -> list[str]:
    """Return the possible folders of this process's memory cgroup, version 2 and version 1."""
    try:
        with open("/proc/self/cgroup") as file:
            rows = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return []
    roots = [
        (os.path.join("/sys/fs/cgroup", c), path) for _, c, path in rows if c in ("", "memory")
    ]
    return [group for root, path in roots for group in (root + path, root)]  # root: in a container


def free_bytes(path: str) -> int | None:
    try:
        disk = os.statvfs(path)
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize
