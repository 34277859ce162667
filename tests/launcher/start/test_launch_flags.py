"""Flags of `launch` that need no host."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from local_machine import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("odd", ["nan", "-1", "inf"])
def test_a_hang_timeout_that_is_no_time_is_one_line_and_exit_code_2(
    machine: Machine, odd: str
) -> None:
    done = machine.ddpctl("launch", "hosts.yaml", "--hang-timeout", odd, code=2)
    assert done.stderr == (
        f"ddpctl: error: --hang-timeout {odd}: use a number of seconds, or 0 for never\n"
    )


def test_flags_override_the_hosts_file_and_are_in_the_plan(machine: Machine) -> None:
    flags = ["--master-port", "23456", "--hang-timeout", "90", "--max-restarts", "2"]
    flags += ["--time-limit", "1h1m"]
    done = machine.ddpctl("launch", "hosts.yaml", "--dry-run", "--json", *flags)
    plan = json.loads(done.stdout)
    assert plan["master_port"] == 23456
    assert plan["options"]["hang_timeout"] == 90
    assert plan["max_restarts"] == 2
    assert plan["time_limit"] == 3660
    assert all("23456" in node["torchrun"] for node in plan["nodes"])
