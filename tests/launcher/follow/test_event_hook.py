"""--on-event: every event once, in order, with its values; what hosts say is never part of a command."""

from __future__ import annotations

import io
import os
import select
import sys
import time
from pathlib import Path

import pytest
from builders import run_record
from local_machine import Machine

from launcher.follow import hooks
from launcher.follow.hooks import EventHook
from launcher.runs.run_folder import RunFolder
from launcher.terminal.console import Console

NOTE = 'echo "$DDPCTL_EVENT $DDPCTL_ATTEMPT [$DDPCTL_NODE_RANK] $DDPCTL_MESSAGE" >> "$HOME/events"'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return RunFolder(tmp_path / "20261122-100000-abcd")


def test_events_run_their_commands_one_after_the_other_without_delaying_the_caller(
    folder: RunFolder, tmp_path: Path
) -> None:
    gates = [tmp_path / f"gate-{number}" for number in range(3)]
    for gate in gates:
        os.mkfifo(gate)
    record = run_record(run_id=folder.run_id)
    hook = EventHook(folder, f"read go < gate-$DDPCTL_NODE_RANK; {NOTE}", Console())
    for number in range(3):  # a call that waited for its command would wait forever
        hook(
            "contact-lost",
            record,
            host="gpu1",
            node_rank=number,
            message="gone",
        )
    for gate in gates:
        gate.write_text("go\n")
    hook.close()
    lines = (tmp_path / "events").read_text().splitlines()
    assert lines == [f"contact-lost 1 [{number}] gone" for number in range(3)]


def test_what_a_host_says_is_an_environment_variable_and_never_a_command(
    folder: RunFolder, tmp_path: Path
) -> None:
    evil = "$(touch taken); `touch taken`\n'; touch taken; '\0"
    hook = EventHook(folder, 'printf %s "$DDPCTL_MESSAGE" > message', Console())
    hook("contact-lost", run_record(run_id=folder.run_id), host=evil, message=evil)
    hook.close()
    assert (tmp_path / "message").read_text() == evil.rstrip("\0")
    assert [path.name for path in tmp_path.iterdir()] == ["message"]


def test_hooks_run_in_a_notebook_whose_stderr_is_no_file(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    hook = EventHook(folder, NOTE, Console())
    hook("started", run_record(run_id=folder.run_id))
    hook.close()
    assert (tmp_path / "events").read_text() == "started 1 [] \n"


def test_a_command_that_hangs_or_fails_is_a_warning(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hooks, "EVENT_TIMEOUT", 0.2)
    command = '[ "$DDPCTL_EVENT" = a ] && sleep 60 3>alive; exit 3'
    os.mkfifo(folder.path.parent / "alive")
    alive = os.open(folder.path.parent / "alive", os.O_RDONLY | os.O_NONBLOCK)
    hook = EventHook(folder, command, Console())
    hook("a", run_record(run_id=folder.run_id))
    hook("b", run_record(run_id=folder.run_id))
    hook.close()
    told = capfd.readouterr().err
    assert "the --on-event command was killed after 0.2s" in told
    assert "the --on-event command exited with 3" in told
    assert select.select([alive], [], [], 10)[0], "`sleep` still has it open"
    os.close(alive)


def test_without_proc_as_on_macos_a_command_that_hangs_is_killed_too(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def descendants(_: int) -> list[int]:
        raise FileNotFoundError(2, "No such file or directory", "/proc")

    monkeypatch.setattr(hooks, "EVENT_TIMEOUT", 0.2)
    monkeypatch.setattr(hooks, "descendants", descendants)
    hook = EventHook(folder, "exec sleep 10", Console())
    hook("a", run_record(run_id=folder.run_id))
    hook.close()
    assert "the --on-event command was killed after 0.2s" in capfd.readouterr().err


def events(machine: Machine) -> list[str]:
    path = machine.folder / "home" / "events"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.real
def test_a_run_reports_its_start_its_nodes_and_its_end(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.ddpctl("launch", "hosts.yaml", "--on-event", NOTE)
    first, *nodes, last = events(machine)
    assert first == "attempt-started 1 [] launch"
    assert sorted(nodes) == ["node-ended 1 [0] SUCCEEDED", "node-ended 1 [1] SUCCEEDED"]
    assert last == "attempt-ended 1 [] SUCCEEDED"
    machine.ddpctl("resume", "--force")  # without the flag there is no command
    assert len(events(machine)) == 4


@pytest.mark.real
def test_detached_the_recorder_goes_on(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.ddpctl("launch", "hosts.yaml", "--detach", "--on-event", NOTE)
    deadline = time.monotonic() + 120
    while len(events(machine)) < 4:
        assert time.monotonic() < deadline, events(machine)
        time.sleep(0.1)
    assert [line.split()[0] for line in events(machine)] == [
        "attempt-started",
        "node-ended",
        "node-ended",
        "attempt-ended",
    ]
