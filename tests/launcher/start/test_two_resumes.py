"""Two commands that resume one run at the same time."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from local_machine import Machine

from launcher.errors import HostUnreachable, NodesFailed, UsageError
from launcher.hosts import Host
from launcher.ssh.host_connection import HostConnection
from launcher.start.reservation import Reservation
from launcher.terminal.console import Console

SCRIPT = """
import os, time
while os.environ["DDPCTL_ATTEMPT"] == "2" and not os.path.exists(os.path.expanduser("~/go")):
    time.sleep(0.05)
raise ValueError("boom on purpose")
"""


def test_an_attempt_can_be_reserved_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    host = Host("local")
    connection = HostConnection(host)

    def reserve(attempt: int) -> None:
        Reservation("r1", attempt).take([connection], Console(quiet=True))

    reserve(2)
    with pytest.raises(UsageError, match="attempt 2 was already started"):
        reserve(2)
    reserve(3)


def test_an_attempt_is_reserved_on_the_first_host_that_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_answer(*_: object) -> None:
        raise HostUnreachable("no answer", host="gpu0")

    monkeypatch.setenv("HOME", str(tmp_path))
    lost, connection = HostConnection(Host("gpu0")), HostConnection(Host("local"))
    monkeypatch.setattr(lost, "script", no_answer)
    console = Console(quiet=True)
    own = Reservation("r1", 2)
    own.take([lost, connection], console)
    own.take([lost, connection], console)
    with pytest.raises(UsageError, match=r"^local: attempt 2 was already started"):
        Reservation("r1", 2).take([lost, connection], console)
    with pytest.raises(NodesFailed, match="gpu0: no answer"):
        Reservation("r1", 2).take([lost], console)


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
