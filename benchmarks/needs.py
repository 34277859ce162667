"""Check a benchmark's requirements. If one is missing, exit with one line that includes the remedy."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys

CLUSTER_IMAGES = ("ddpctl-node", "ddpctl-trainer:latest")


def need_modules(benchmark: str, *names: str) -> None:
    _refuse(benchmark, "module", [name for name in names if not importlib.util.find_spec(name)])


def need_root_and(benchmark: str, *programs: str) -> None:
    if os.geteuid():
        sys.exit(f"benchmarks.{benchmark}: needs root; run it with sudo or in a container")
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])  # sshd, ip, tc
    _refuse(benchmark, "program", [each for each in programs if not shutil.which(each, path=path)])


def need_cluster(benchmark: str) -> None:
    """Require a Docker Engine and the images of the simulated cluster."""
    _refuse(benchmark, "program", [] if shutil.which("docker") else ["docker"])
    _refuse(benchmark, "Docker Engine or image", [i for i in CLUSTER_IMAGES if not _is_here(i)])


def _is_here(image: str) -> bool:
    argv = ["docker", "image", "inspect", image]
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def _refuse(benchmark: str, kind: str, missing: list[str]) -> None:
    if missing:
        names = ", ".join(missing)
        sys.exit(
            f"benchmarks.{benchmark}: no {kind} {names}; run `make bench-{benchmark}`, which sets it up"
        )
