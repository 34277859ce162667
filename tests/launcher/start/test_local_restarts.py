"""Restarts of real runs on this machine, without Docker: which failures, how often, and when they end."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from local_machine import Machine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SCRIPT = """
import os, signal, sys
from pathlib import Path
rank, attempt = int(os.environ["RANK"]), int(os.environ["DDPCTL_ATTEMPT"])
kept = Path(os.environ["DDPCTL_CHECKPOINT_DIR"], "kept.txt")
print("attempt", attempt, os.environ["DDPCTL_RESUME"], kept.exists(), sys.argv[2:], flush=True)
deed = sys.argv[1]
if rank == 0 and attempt == 1 and deed == "once":
    kept.write_text("saved")
if rank == 0 and (deed == "always" or (deed == "once" and attempt == 1)):
    os.kill(os.getpid(), signal.SIGKILL)
if deed == "refuse":
    sys.exit(7)
"""


@pytest.fixture
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> Machine:
    machine = Machine(tmp_path, real_torchrun=getattr(request, "param", False))
    (tmp_path / "code" / "again.py").write_text(SCRIPT)
    job = json.loads((tmp_path / "hosts.yaml").read_text())["job"]
    job |= {"nproc_per_node": 1, "resume_args": ["--from", "kept"]}
    hosts = [{"host": "local", "gpus": 0}]
    (tmp_path / "hosts.yaml").write_text(json.dumps({"hosts": hosts, "job": job}))
    return machine


def wait_for_success(machine: Machine) -> None:
    deadline = time.monotonic() + 120
    while machine.record()["state"] != "SUCCEEDED":
        assert time.monotonic() < deadline, machine.record()
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("machine", "how"), [(True, []), (False, ["--detach"])], indirect=["machine"]
)
def test_a_killed_rank_is_worth_a_restart_that_goes_on(machine: Machine, how: list[str]) -> None:
    """Detached, it is the recorder that starts it; the run keeps its --hang-timeout."""
    words = ["launch", "hosts.yaml", "--max-restarts", "2", "--hang-timeout", "77s", *how]
    machine.ddpctl(*words, "--", "again.py", "once")
    wait_for_success(machine)
    first, second = machine.record()["attempts"]
    assert (first["state"], first["by"]) == ("FAILED", "launch")
    assert first["first_failure"]["kind"] == "killed"
    assert (second["state"], second["by"]) == ("SUCCEEDED", "restart")
    said = machine.ddpctl("logs").stdout.splitlines()
    assert "[local:0] attempt 2 1 True ['--from', 'kept']" in said
    [spec] = (machine.folder / "home").glob(".ddpctl/runs/*/nodes/0/attempt-2/spec.json")
    assert json.loads(spec.read_text())["hang_timeout"] == 77


def test_a_failure_that_would_happen_again_is_not_restarted(machine: Machine) -> None:
    words = ["launch", "hosts.yaml", "--max-restarts", "2", "--", "again.py", "refuse"]
    done = machine.ddpctl(*words, code=1)
    assert (
        "no restart: a failure of kind `exit-code` would happen again; `ddpctl resume"
        in done.stderr
    )
    assert len(machine.record()["attempts"]) == 1


def test_three_attempts_that_save_nothing_are_enough(machine: Machine) -> None:
    words = ["launch", "hosts.yaml", "--max-restarts", "9", "--", "again.py", "always"]
    done = machine.ddpctl(*words, code=1)
    assert "3 attempts in a row saved no new checkpoint" in done.stderr
    assert [a["by"] for a in machine.record()["attempts"]] == ["launch", "restart", "restart"]


def test_a_resume_keeps_the_hang_timeout_and_restarts_too(machine: Machine) -> None:
    words = ["launch", "hosts.yaml", "--hang-timeout", "77s", "--max-restarts", "1"]
    machine.ddpctl(*words, "--", "again.py", "refuse", code=1)
    folder = machine.folder / "state" / "ddpctl" / "runs"
    [hosts] = folder.glob("*/hosts.yaml")
    hosts.write_text(hosts.read_text().replace("refuse", "always"))
    machine.ddpctl("resume", code=1)
    record = machine.record()
    assert [a["by"] for a in record["attempts"]] == ["launch", "resume", "restart"]
    assert record["options"]["hang_timeout"] == 77
