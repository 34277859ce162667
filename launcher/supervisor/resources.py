"""What a process can run out of: memory and room on disks."""

from __future__ import annotations

import os
from typing import Any


class Resources:
    """What a process can run out of: the kernel's OOM kills here, and room on the disks."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._disks = {
            "shm": "/dev/shm",
            "checkpoints": spec.get("checkpoint_dir"),
            "output": spec.get("output_dir"),
            "logs": spec["dir"],
        }
        self._groups = memory_groups()
        self._kills_before = self._kills()

    def oom_kills(self) -> int:
        """Since the start, in this container or session."""
        return self._kills() - self._kills_before

    def as_event(self) -> dict[str, Any]:
        limit = self._number(("memory.max", "memory.limit_in_bytes"), "")
        return {
            "oom_kills": self.oom_kills(),
            "memory_limit": limit if 0 < limit < 1 << 60 else None,
            "free": {name: free_bytes(path) for name, path in self._disks.items() if path},
        }

    def _kills(self) -> int:
        return self._number(("memory.events", "memory.oom_control"), "oom_kill ")

    def _number(self, names: tuple[str, ...], label: str) -> int:
        """The number after `label` in the first file of these that there is; 0 without one."""
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
    groups = []
    try:
        with open("/proc/self/cgroup") as file:
            rows = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return []
    for _, controllers, path in rows:
        if controllers in ("", "memory"):
            root = os.path.join("/sys/fs/cgroup", controllers)
            groups += [root + path, root]  # the second is right inside a container
    return groups


def free_bytes(path: str) -> int | None:
    try:
        disk = os.statvfs(path)
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize
