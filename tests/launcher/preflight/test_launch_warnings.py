"""A launch counts the warnings of its check."""

from __future__ import annotations

import json
from pathlib import Path

from local_machine import Machine

from launcher.facts.gather import gather_one
from launcher.hosts import Host
from launcher.ssh.host_connection import HostConnection


def test_a_launch_on_a_host_where_gpus_all_finds_none_says_that_there_is_a_warning(
    tmp_path: Path,
) -> None:
    machine = Machine(tmp_path)
    hosts = json.loads((tmp_path / "hosts.yaml").read_text())
    hosts["hosts"] = ["local"]
    (tmp_path / "hosts.yaml").write_text(json.dumps(hosts))
    if gather_one(HostConnection(Host("local"))).gpus:
        return  # a machine with GPUs is no CPU node
    done = machine.ddpctl("launch", "hosts.yaml", "-v")
    assert "warning: local: gpus: found no GPU, so this is a CPU node; set gpus: 0" in done.stderr
    assert "1 warning; see `ddpctl check hosts.yaml`" in done.stderr
