"""Two commands that resume one run at the same time."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from local_machine import Machine

from launcher.errors import UsageError
from launcher.hosts import Host
from launcher.plan.plan import place_in
from launcher.ssh.node import Node
from launcher.start.node_folders import claim

SCRIPT = """
import os, time
while os.environ["DDPCTL_ATTEMPT"] == "2" and not os.path.exists(os.path.expanduser("~/go")):
    time.sleep(0.05)
raise ValueError("boom on purpose")
"""


def test_an_attempt_is_claimed_once(tmp_path: Path) -> None:
    node = Node(Host("local"))
    claim(node, place_in(f"{tmp_path}/runs/r1", "r1", 0, 2))
    with pytest.raises(UsageError, match="attempt 2 was already started"):
        claim(node, place_in(f"{tmp_path}/runs/r1", "r1", 0, 2))
    claim(node, place_in(f"{tmp_path}/runs/r1", "r1", 0, 3))


def test_of_two_at_once_exactly_one_starts_and_the_run_is_whole(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    machine.ddpctl("launch", "hosts.yaml", code=1)
    other = {**machine.env, "XDG_STATE_HOME": str(tmp_path / "other")}
    shutil.copytree(tmp_path / "state", tmp_path / "other")  # as another machine knows the run
    processes = [machine.start("resume", env=env) for env in (machine.env, other)]
    end = time.monotonic() + 120
    while all(process.poll() is None for process in processes):
        assert time.monotonic() < end, "neither is refused"
        time.sleep(0.05)
    (tmp_path / "home" / "go").touch()  # the attempt that did start may end
    told = [process.communicate(timeout=120) for process in processes]
    codes = [process.returncode for process in processes]
    assert sorted(codes) == [1, 2], told
    refusal = told[codes.index(2)][1]  # the second message if the refused command looked later
    assert "attempt 2 was already started" in refusal or "still running or waiting" in refusal
    assert "boom on purpose" in told[codes.index(1)][1]
    assert machine.left() == []
