"""Records that cannot be read or written stop nothing: the run and its commands keep working."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from local_machine import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def run_folder(machine: Machine) -> Path:
    [folder] = (machine.folder / "state" / "ddpctl" / "runs").iterdir()
    return folder


def test_ps_logs_and_kill_work_without_a_readable_record(machine: Machine) -> None:
    run_id = machine.ddpctl("launch", "hosts.yaml", "-d", "--env", "SLEEP=100").stdout.strip()
    machine.wait_for_ranks()
    path = run_folder(machine) / "run.json"
    (machine.folder / "hosts.yaml").unlink()  # so that `ps` goes by the record
    for damaged in ("[]", json.dumps({**json.loads(path.read_text()), "version": 99})):
        path.write_text(damaged)
        listed = machine.ddpctl("ps")
        assert run_id in listed.stdout and "RUNNING" in listed.stdout
        assert listed.stderr.count("warning: ") == 1 and "cannot be read" in listed.stderr
        shown = machine.ddpctl("logs", run_id, "--rank", "1-2")
        assert sorted(line[:9] for line in shown.stdout.splitlines()) == ["[local:1]", "[local:2]"]
        assert shown.stderr.count("cannot be read") == 1
    killed = machine.ddpctl("kill", run_id)
    assert f"run {run_id}: stopped, nothing left on local" in killed.stderr


def test_a_lost_state_folder_ends_neither_the_run_nor_its_exit_code(machine: Machine) -> None:
    process = machine.start("launch", "hosts.yaml", "--env", "SLEEP=5", "--env", "BAD=1")
    assert process.stdout is not None
    for _ in range(4):  # the log of each node is open once its ranks have spoken
        while "up" not in (line := process.stdout.readline()):
            assert line, "the run ended by itself"
    folder = run_folder(machine)
    folder.rename(folder.with_name("elsewhere"))
    folder.write_text("in the way")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "ValueError: boom on purpose" in err
    assert err.count("not recorded: ") == 1 and "internal error" not in err
