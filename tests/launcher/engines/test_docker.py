"""What Docker's answers may cost."""

from __future__ import annotations

import time
from typing import Any

import pytest

from launcher.engines import docker
from launcher.engines.status import NodeStatus
from launcher.errors import CommandTimeout
from launcher.hosts import Host
from launcher.ssh.host_connection import HostConnection


class ManyContainers:
    clock = None

    def inspect_container(self, _: str) -> dict[str, Any]:
        time.sleep(0.05)
        return {}


def test_a_host_cannot_hold_a_command_with_many_containers_that_are_slow_to_inspect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(docker, "docker_of", lambda _: ManyContainers())
    monkeypatch.setattr(docker, "INSPECT_TIMEOUT", 0.2)
    statuses = [NodeStatus(container=str(number)) for number in range(10_000)]
    began = time.monotonic()
    with pytest.raises(CommandTimeout, match="`docker inspect` did not end within"):
        docker.Docker(HostConnection(Host("local"))).details(statuses)
    assert time.monotonic() - began < 20
