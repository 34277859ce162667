"""What this node runs on, and how busy its CPUs and GPUs are."""

from __future__ import annotations

import os
import platform
import re
import site
import subprocess
import sys
import time
from importlib import metadata

from .events import Environment, Gpu, Usage
from .proc import descendants, usage

INTERVAL = 10.0  # seconds; without persistence mode nvidia-smi takes up to a second of a core
PACKAGES = ["torch", "torchvision", "numpy", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "lightning"]
PACKAGES += ["accelerate", "deepspeed", "transformers"]
NVIDIA_SMI = ["nvidia-smi", "--query-gpu=utilization.gpu,memory.used,memory.total"]
NVIDIA_SMI += ["--format=csv,noheader,nounits"]
_NUMBER = re.compile("[0-9]{1,9}")


def environment() -> Environment:
    """Of the packages, those beside the Python that runs this, which is torchrun's as a rule."""
    versions = {"python": platform.python_version(), "kernel": platform.release()}
    paths = site.getsitepackages([os.path.dirname(os.path.dirname(sys.executable)), sys.prefix])
    try:
        for name in PACKAGES:
            for found in metadata.Distribution.discover(name=name, path=paths):
                versions.setdefault(name, str(found.version))
    except Exception:
        pass  # a damaged installation is the job's problem, if it is one
    try:
        with open("/proc/driver/nvidia/version") as file:
            driver = re.search(r"Kernel Module\D+([0-9.]+)", file.readline())
            if driver:
                versions["nvidia driver"] = driver.group(1)
    except OSError:
        pass
    return Environment(versions, tuple(sorted(os.environ)))


class Sampler:
    """Samples every INTERVAL. nvidia-smi runs beside the supervisor, which never waits for it."""

    def __init__(self) -> None:
        self._next = time.monotonic() + INTERVAL / 2
        self._asked: subprocess.Popen[bytes] | None = None
        # without a device to see there is nothing to ask
        self._has_gpus = os.environ.get("CUDA_VISIBLE_DEVICES") != ""
        self._at = time.monotonic()
        self._cpu: dict[int, float] = {}  # CPU seconds, by process

    def turn(self) -> Usage | None:
        """A sample when one is due."""
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
        """CPU cores that the processes below us have kept busy since the last sample."""
        before, past = self._cpu, now - self._at
        self._cpu = {pid: usage(pid)[1] for pid in descendants(os.getpid())}
        self._at = now
        spent = sum(cpu - min(cpu, before.get(pid, 0.0)) for pid, cpu in self._cpu.items())
        return round(spent / past, 2) if past > 0 else 0.0


def parse_gpus(text: bytes) -> tuple[Gpu, ...]:
    """From nvidia-smi's rows `use, used, total`; () without a readable row."""
    found = []
    for line in text.decode(errors="replace").splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 3 and all(c == "[N/A]" or _NUMBER.fullmatch(c) for c in cells[1:]):
            found.append(Gpu(*(int(c) if _NUMBER.fullmatch(c) else 0 for c in cells)))
    return tuple(found)
