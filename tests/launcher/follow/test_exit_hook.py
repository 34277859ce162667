"""--on-exit: it runs once, with the outcome, whichever process sees the run end."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from local_machine import Machine

NOTE = (
    'echo "$DDPCTL_RUN_ID $DDPCTL_STATE $DDPCTL_EXIT_CODE $DDPCTL_ATTEMPT '
    '[$DDPCTL_FIRST_FAILURE]" >> "$HOME/note"; echo seen; test -d "$DDPCTL_RUN_DIR"'
)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def note(machine: Machine) -> list[str]:
    path = machine.folder / "home" / "note"
    return path.read_text().splitlines() if path.exists() else []


def wait_for_note(machine: Machine, lines: int) -> list[str]:
    deadline = time.monotonic() + 120
    while len(note(machine)) < lines:
        assert time.monotonic() < deadline, "no word of the recorder"
        time.sleep(0.1)
    return note(machine)


def test_the_exit_hook_runs_once_for_a_run_and_once_for_its_resume(machine: Machine) -> None:
    done = machine.ddpctl("launch", "hosts.yaml", "--on-exit", NOTE)
    run_id = machine.record()["run_id"]
    assert note(machine) == [f"{run_id} SUCCEEDED 0 1 []"]
    assert "seen" in done.stderr and "seen" not in done.stdout
    machine.ddpctl("resume", "--force", "--on-exit", NOTE)
    machine.ddpctl("resume", "--force")
    assert note(machine)[1:] == [f"{run_id} SUCCEEDED 0 2 []"]


def test_a_failure_is_told_with_its_cause_and_a_failing_command_is_a_warning(
    machine: Machine,
) -> None:
    flags = ["--env", "BAD=3", "--on-exit", f"{NOTE}; exit 9"]
    done = machine.ddpctl("launch", "hosts.yaml", *flags, code=1)
    [line] = note(machine)
    assert " FAILED 1 1 [" in line and "boom on purpose" in line
    assert "warning: the --on-exit command exited with 9" in done.stderr


def test_the_recorder_runs_a_detached_runs_hook_and_attach_runs_its_own(machine: Machine) -> None:
    flags = ["--detach", "--env", "SLEEP=100", "--on-exit", f"{NOTE}; sleep 5"]
    run_id = machine.ddpctl("launch", "hosts.yaml", *flags).stdout.strip()
    assert note(machine) == []
    watching = machine.start("attach", run_id, "--on-exit", NOTE)
    machine.ddpctl("kill", run_id)  # confirmed although what tells of the end carries the run's id
    watching.communicate(timeout=60)
    told = wait_for_note(machine, 2)
    assert [line.split()[:3] for line in told] == [[run_id, "CANCELLED", "7"]] * 2
    folder = machine.folder / "state" / "ddpctl" / "runs" / run_id
    assert list(folder.glob("on-exit*")) == []


def test_no_run_no_word(machine: Machine) -> None:
    machine.ddpctl("launch", "hosts.yaml", "--dry-run", "--on-exit", NOTE)
    machine.ddpctl("launch", "hosts.yaml", "--env", "UNSET", "--on-exit", NOTE, code=2)
    assert note(machine) == []
