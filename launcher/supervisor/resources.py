"""What a process can run out of: memory, and room on disks."""

from __future__ import annotations

import os

from .events import ResourceUsage
from .spec import Spec


class Resources:
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
        """Since the start, in this container or session."""
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
        """The number after `label` in the first of these files that exists; 0 without one."""
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
    """Where this process's memory cgroup may be, version 2 and version 1."""
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
