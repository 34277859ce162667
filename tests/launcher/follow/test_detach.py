"""The recorder of a detached run: what it imports, and that it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from builders import run_record
from local_machine import Machine
from supervisors import until

from launcher.errors import CommandFailed
from launcher.follow import detach
from launcher.runs import attempt_lock
from launcher.runs.run_folder import RunFolder


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def launch_detached(machine: Machine) -> subprocess.CompletedProcess[str]:
    """As the installed `ddpctl` does it: the current directory is not on its import path."""
    argv = [machine.python, "-P", "-m", "launcher", "launch", "hosts.yaml", "--detach"]
    return subprocess.run(
        argv, cwd=machine.folder, env=machine.env, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("below", ["", "launcher"])
def test_it_finds_ddpctl_where_only_the_current_directory_did(
    monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    checkout = Path(__file__).parents[3]
    monkeypatch.chdir(checkout / below)
    monkeypatch.setattr(sys, "path", ["", str(checkout), "/usr/lib/python3"])
    assert detach.import_path() == [str(checkout), "/usr/lib/python3"]


def test_it_imports_nothing_from_the_current_directory(machine: Machine) -> None:
    (machine.folder / "json.py").write_text(f"open({str(machine.folder / 'ran')!r}, 'w')\n")
    (machine.folder / "launcher").mkdir()
    (machine.folder / "launcher" / "__init__.py").touch()
    done = launch_detached(machine)
    assert done.returncode == 0, done.stderr
    deadline = time.monotonic() + 60
    while machine.record()["state"] != "SUCCEEDED":
        assert time.monotonic() < deadline, "the recorder did not record the end"
        time.sleep(0.1)
    assert not (machine.folder / "ran").exists()


def test_one_that_does_not_start_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path / "r1")
    folder.path.mkdir()
    with pytest.raises(CommandFailed, match=r"recorder did not start: .*run\.json"):
        detach.ensure_recorder(folder)  # there is no record to read
    folder.save(run_record(run_id="r1"))
    monkeypatch.setattr(detach, "BOOT", "import time; time.sleep(60)")
    monkeypatch.setattr(detach, "START_TIMEOUT", 0.2)
    with pytest.raises(
        CommandFailed, match="r1: the run continues, but its recorder did not start"
    ):
        detach.ensure_recorder(folder)


def test_a_recorder_inherits_the_lock_of_the_command_that_leaves_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, pids = RunFolder(tmp_path / "r1"), tmp_path / "pids"
    folder.save(run_record(run_id="r1"))
    notes = f"import os, time; print(os.getpid(), file=open({str(pids)!r}, 'a')); "
    monkeypatch.setattr(detach, "BOOT", notes + "print('ready', flush=True); time.sleep(60)")
    with attempt_lock.locks_released_at_end(folder):
        attempt_lock.take_care(folder, 1)
        detach.ensure_recorder(folder)
    assert attempt_lock.is_taken_care_of(folder)
    detach.ensure_recorder(folder)  # there is one
    [pid] = pids.read_text().split()
    os.kill(int(pid), signal.SIGKILL)
    until(lambda: not attempt_lock.is_taken_care_of(folder), 20)


def test_a_folder_that_cannot_be_written_is_an_error_and_the_run_goes_on(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="the run continues, but its recorder did not start"):
        detach.ensure_recorder(RunFolder(tmp_path / "gone" / "r1"))
