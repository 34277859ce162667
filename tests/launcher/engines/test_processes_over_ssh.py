"""engine: process on other hosts, which are reached through a real sshd and have no container engine."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_machine import Machine
from sshd_server import Sshd

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """Two nodes on a host that has torchrun in an environment of its own. Ranks print and sleep."""
    machine = Machine(tmp_path)
    home = tmp_path / "home"
    (home / ".ssh").mkdir(mode=0o700)
    sshd = Sshd(tmp_path / "sshd", home).start()
    sshd.know()
    document = json.loads((tmp_path / "hosts.yaml").read_text())
    host = {"host": sshd.address, "port": sshd.port, "gpus": 0}
    document["hosts"] = [host | {"identity_file": str(sshd.user_key)}] * 2
    document["job"]["python"] = machine.python
    (tmp_path / "hosts.yaml").write_text(json.dumps(document))
    yield machine
    sshd.stop()


def shown(machine: Machine) -> list[str]:
    done = machine.ddpctl("ps", "hosts.yaml", "--all", "--json")
    return [node["state"] for run in json.loads(done.stdout)["runs"] for node in run["nodes"]]


def test_a_run_on_another_host_succeeds_and_its_logs_stay(machine: Machine) -> None:
    done = machine.ddpctl("launch", "hosts.yaml")
    lines = [f"up {rank} ['two words', '$(x)'] attempt 1" for rank in range(4)]
    assert sorted(line.split("] ", 1)[1] for line in done.stdout.splitlines()) == lines
    assert [node["state"] for node in machine.record()["attempts"][0]["nodes"]] == ["SUCCEEDED"] * 2
    assert sorted(machine.ddpctl("logs").stdout.splitlines()) == sorted(done.stdout.splitlines())
    machine.ddpctl("clean", "hosts.yaml", "--yes")
    assert not [*(machine.folder / "home" / ".ddpctl").glob("runs/*/nodes")]


def test_a_failed_rank_stops_all_nodes_and_is_named_and_resume_starts_the_next_attempt(
    machine: Machine,
) -> None:
    script = """
import os, time
from pathlib import Path
kept = Path(os.environ["DDPCTL_CHECKPOINT_DIR"]) / "kept"
if os.environ["DDPCTL_ATTEMPT"] == "1":
    kept.touch()
    assert os.environ["RANK"] != "3", "boom"
    time.sleep(60)
print("resumed", kept.exists())
"""
    (machine.folder / "code" / "flaky.py").write_text(script)
    done = machine.ddpctl("launch", "hosts.yaml", "--", "flaky.py", code=1)
    assert "rank 3" in done.stderr and "AssertionError: boom" in done.stderr
    assert machine.ddpctl("resume").stdout.count("resumed True") == 4


def test_a_detached_run_outlives_the_connection_and_a_kill_leaves_nothing(machine: Machine) -> None:
    machine.ddpctl(
        "launch", "hosts.yaml", "--env", "SLEEP=600", "--env", "TOKEN=s3cret", "--detach"
    )
    machine.wait_for_ranks()
    assert shown(machine) == ["running", "running"]
    words = ("exec", "--rank", "2", "--", "sh", "-c", 'echo "$TOKEN $DDPCTL_NODE_RANK"; exit 5')
    assert machine.ddpctl(*words, code=5).stdout == "s3cret 1\n"
    (machine.folder / "state").rename(machine.folder / "lost")  # this machine knows nothing
    machine.ddpctl("kill", "hosts.yaml", "--all", "--yes")
    assert set(shown(machine)) <= {"cancelled"}
    deadline = time.monotonic() + 20
    while any("supervisor.pyz" in line or "train.py" in line for line in machine.left()):
        assert time.monotonic() < deadline, machine.left()
        time.sleep(0.1)


def test_a_python_that_a_host_lacks_is_one_line(machine: Machine) -> None:
    document = json.loads((machine.folder / "hosts.yaml").read_text())
    document["job"]["python"] = "/opt/none/bin/python"
    (machine.folder / "hosts.yaml").write_text(json.dumps(document))
    done = machine.ddpctl("launch", "hosts.yaml", code=3)
    line = "there is no Python /opt/none/bin/python; set job.python or job.conda"
    assert line in done.stderr
