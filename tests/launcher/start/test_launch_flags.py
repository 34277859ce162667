"""Flags of `launch` that need no host."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes import FakeCluster
from local_machine import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("flag", ["--hang-timeout", "--wait-limit", "--time-limit"])
@pytest.mark.parametrize(
    ("text", "remedy"), [("24", "write 24h or 24m"), ("-1", "such as 90s"), ("soon", "such as 90s")]
)
def test_a_malformed_duration_is_one_line_with_the_remedy(
    machine: Machine, flag: str, text: str, remedy: str
) -> None:
    done = machine.ddpctl("launch", "hosts.yaml", flag, text, code=2)
    assert done.stderr.count("\n") == 1
    assert flag in done.stderr and remedy in done.stderr


def test_flags_override_the_hosts_file_and_are_in_the_plan(machine: Machine) -> None:
    flags = ["--master-port", "23456", "--hang-timeout", "90s", "--max-restarts", "2"]
    flags += ["--time-limit", "1h1m"]
    done = machine.ddpctl("launch", "hosts.yaml", "--dry-run", "--json", *flags)
    plan = json.loads(done.stdout)
    assert plan["master_port"] == 23456
    assert plan["options"]["hang_timeout"] == 90
    assert plan["max_restarts"] == 2
    assert plan["time_limit"] == 3660
    assert all("23456" in node["torchrun"] for node in plan["nodes"])


@pytest.mark.parametrize("words", [("-H", "a:1"), ("-H", "9" * 5000), ("hosts.yaml",)])
def test_a_name_that_is_too_long_for_a_file_is_no_internal_error(
    fake_cluster: Callable[..., FakeCluster], words: tuple[str, ...]
) -> None:
    cluster = fake_cluster()
    given = [cluster.hosts_file if word == "hosts.yaml" else word for word in words]
    code, _, err = cluster.ddpctl("launch", *given, "--dry-run", "--", "9" * 5000)
    assert code in (0, 2) and "internal error" not in err


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [("python", "no-such-python", "no Python"), ("conda", "nowhere", "no conda environment")],
)
def test_a_python_that_is_not_there_is_named_with_its_remedy(
    machine: Machine, key: str, value: str, what: str
) -> None:
    file = machine.folder / "hosts.yaml"
    content = json.loads(file.read_text())
    content["job"][key] = value
    file.write_text(json.dumps(content))
    said = machine.ddpctl("launch", "hosts.yaml", "--no-check", code=1).stderr
    assert f"there is {what} {value}; set job.python or job.conda to" in said
