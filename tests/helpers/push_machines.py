"""Hosts for the tests of the push: each has a home folder and an sshd of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sshd_server import Sshd

from launcher.hosts import Cluster, Job
from launcher.push.push import PushResult, push
from launcher.ssh.node import Node
from launcher.terminal.console import Console


@dataclass
class Machine:
    """A host with a home folder of its own behind an sshd of its own."""

    node: Node
    home: Path
    server: Sshd

    def trees(self, kind: str) -> list[Path]:
        """Published trees, without drafts."""
        folder = self.home / ".ddpctl" / kind
        return sorted(folder.glob("[!.]*")) if folder.exists() else []

    def drafts(self, kind: str) -> list[Path]:
        folder = self.home / ".ddpctl" / kind
        return sorted(folder.glob(".[!.]*")) if folder.exists() else []


Machines = Callable[..., list[Machine]]


def push_to(hosts: list[Machine], **job: str) -> PushResult:
    cluster = Cluster(
        hosts=tuple(machine.node.host for machine in hosts),
        job=Job(engine="process", **job),  # type: ignore[arg-type]
    )
    nodes = [machine.node for machine in hosts]
    return push(nodes, cluster, parts={"dataset", "workdir"}, console=Console(quiet=True))
