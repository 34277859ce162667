"""Restarts of real runs on this machine, in place and by the launcher, and what is recorded of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from local_machine import Machine
from supervisors import until

from launcher.runs import attempt_lock
from launcher.runs.run_folder import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SCRIPT = """
import os, signal, sys, time
from pathlib import Path
rank, round = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
attempt, kept = os.environ["DDPCTL_ATTEMPT"], Path(os.environ["DDPCTL_CHECKPOINT_DIR"])
deed = sys.argv[1]
lasts = deed == "lasting" and (attempt, round) == ("1", 1)
if lasts:  # a restart after progress has the shortest pause
    (kept / "kept.txt").write_text("saved again")
print("attempt", attempt, "round", round, os.environ["DDPCTL_RESUME"], sys.argv[2:], flush=True)
while deed == "when-told" and not (kept / "go").exists():
    time.sleep(0.05)
if lasts:
    time.sleep(120)
if rank == 0 and (deed == "always" or (attempt, round) == ("1", 0)) and deed != "refuse":
    (kept / "kept.txt").write_text("saved") if deed != "always" else None
    os.kill(os.getpid(), signal.SIGKILL)
if deed == "refuse":
    sys.exit(7)
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    (tmp_path / "code" / "again.py").write_text(SCRIPT)
    job = json.loads((tmp_path / "hosts.yaml").read_text())["job"]
    job |= {"nproc_per_node": 1, "resume_args": ["--from", "kept"]}
    hosts = [{"host": "local", "gpus": 0}]
    (tmp_path / "hosts.yaml").write_text(json.dumps({"hosts": hosts, "job": job}))
    keep_claims_apart(machine)
    return machine


def keep_claims_apart(machine: Machine) -> None:
    """Give the machine a launcher whose claims, also those of a waiting run, no other test sees."""
    code = machine.folder / "claims-apart"
    shutil.copytree(Path(machine.env["PYTHONPATH"]) / "launcher", code / "launcher")
    script = code / "launcher" / "engines" / "process_files.sh"
    text = script.read_text()
    assert "/tmp/ddpctl-claims-" in text
    script.write_text(text.replace("/tmp/ddpctl-claims-", f"{machine.folder}/claims-"))
    machine.env["PYTHONPATH"], machine.forks = str(code), False


def launch(machine: Machine, deed: str, *flags: str, code: int = 0) -> str:
    """Launch and return stderr."""
    words = ["launch", "hosts.yaml", "--max-restarts", "2", *flags]
    return machine.ddpctl(*words, "--", "again.py", deed, code=code).stderr


def journal(machine: Machine) -> bytes:
    """The journals of all attempts."""
    paths = sorted((machine.folder / "home").glob(".ddpctl/runs/*/nodes/0/*/journal"))
    return b"".join(path.read_bytes() for path in paths)


def process(word: str, machine: Machine) -> int:
    """The one process of this machine's user whose command line has `word`.

    Shells do not count, nor do children that still have to become another program.
    """
    parents = {}
    mark = f"HOME={machine.folder / 'home'}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            ours = mark in (entry / "environ").read_bytes().split(b"\0")
            line = (entry / "cmdline").read_bytes()
            if ours and word.encode() in line and not line.startswith(b"sh\0"):
                stat = (entry / "stat").read_text()
                parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
        except OSError:
            continue
    [pid] = (pid for pid, parent in parents.items() if parent not in parents)
    return pid


def log_lines(machine: Machine) -> list[str]:
    [log] = (machine.folder / "state").glob("ddpctl/runs/*/logs/node-0.log")
    return log.read_text().splitlines()


def test_a_killed_rank_is_restarted_in_place_and_the_record_and_the_hook_say_so(
    machine: Machine,
) -> None:
    hook = "echo $DDPCTL_EVENT $DDPCTL_MESSAGE >> events"
    launch(machine, "once", "--hang-timeout", "77s", "--on-event", hook)
    record: dict[str, Any] = machine.record()
    [attempt] = record["attempts"]
    assert (attempt["state"], attempt["first_failure"]) == ("SUCCEEDED", None)
    [restart] = attempt["restarts"]
    assert {key: restart[key] for key in ("kind", "cause", "host", "rank", "saved")} == {
        "kind": "in-place",
        "cause": "killed",
        "host": "local",
        "rank": 0,
        "saved": True,
    }
    assert attempt["started"] < restart["time"] < attempt["ended"]
    said = machine.ddpctl("logs").stdout.splitlines()
    assert "[local:0] attempt 1 round 1 1 ['--from', 'kept']" in said
    why = "rank 0 (local, local_rank 0) was killed by SIGKILL"
    assert f"[local] ddpctl: restarting in place (1 of 2): {why}" in said
    assert f"restarted {why}" in (machine.folder / "events").read_text().splitlines()


def test_a_recorder_that_wakes_up_after_the_end_has_every_line_once_and_tells_the_truth(
    machine: Machine,
) -> None:
    launch(machine, "when-told", "--detach")
    recorder = process("launcher.start.recorder", machine)
    until(lambda: b"round 0" in journal(machine), 60)
    os.kill(recorder, signal.SIGSTOP)
    [kept] = (machine.folder / "home").glob(".ddpctl/runs/*/checkpoints")
    (kept / "go").touch()
    until(lambda: b'"kind": "end"' in journal(machine), 60)
    assert machine.record()["state"] == "RUNNING"
    os.kill(recorder, signal.SIGCONT)
    until(lambda: machine.record()["state"] == "SUCCEEDED", 60)
    [attempt] = machine.record()["attempts"]
    assert [restart["kind"] for restart in attempt["restarts"]] == ["in-place"]
    [evidence] = (machine.folder / "state").glob("ddpctl/runs/*/logs/failure-*.txt")
    assert evidence.name == "failure-attempt-1-restart-1.txt"
    assert "rank 0 (local, local_rank 0) was killed by SIGKILL" in evidence.read_text()
    lines = log_lines(machine)
    assert [line for line in lines if line.startswith("[local:0]")] == [
        "[local:0] attempt 1 round 0 0 []",
        "[local:0] attempt 1 round 1 1 ['--from', 'kept']",
    ]


def test_after_a_restart_in_place_the_launcher_restarts_what_has_lost_its_supervisor(
    machine: Machine,
) -> None:
    """Both count: the second restart is the last."""
    launch(machine, "lasting", "--detach")
    until(lambda: b"round 1" in journal(machine), 60)
    os.kill(process("supervisor.pyz", machine), signal.SIGKILL)
    until(lambda: machine.record()["state"] == "SUCCEEDED", 60)
    first, second = machine.record()["attempts"]
    assert first["first_failure"]["kind"] == "container-killed"
    assert [(r["kind"], r["cause"]) for r in first["restarts"]] == [
        ("in-place", "killed"),
        ("launcher", "container-killed"),
    ]
    assert (second["by"], second["restarts"]) == ("restart", [])
    [spec] = (machine.folder / "home").glob(".ddpctl/runs/*/nodes/0/attempt-2/spec.json")
    assert [cause for cause, _ in json.loads(spec.read_text())["past_restarts"]] == [
        "killed",
        "container-killed",
    ]
    assert b"attempt 2 round 0 1 ['--from', 'kept']" in journal(machine)


def test_attach_and_logs_follow_a_run_that_its_recorder_restarts(machine: Machine) -> None:
    launch(machine, "lasting", "--detach")
    followers = [machine.start("attach"), machine.start("logs", "-f", "--grep", "round")]
    until(lambda: b"round 1" in journal(machine), 60)
    os.kill(process("supervisor.pyz", machine), signal.SIGKILL)
    for follower in followers:
        out, err = follower.communicate(timeout=120)
        assert follower.returncode == 0, err
        assert [line.partition("] ")[2] for line in out.splitlines() if " round " in line] == [
            "attempt 1 round 0 0 []",
            "attempt 1 round 1 1 ['--from', 'kept']",
            "attempt 2 round 0 1 ['--from', 'kept']",
        ]
        assert "starts another attempt" not in err


def test_without_containers_nobody_gets_what_a_run_has_before_it_restarts(machine: Machine) -> None:
    """Without GPUs, that is the master port."""
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    file = machine.folder / "hosts.yaml"
    file.write_text(file.read_text().replace('"auto"', str(port)))
    launch(machine, "lasting", "--detach")
    until(lambda: b"round 1" in journal(machine), 60)
    tickets = lambda: [*machine.folder.glob(f"claims-*/*{run_id}*.waiting")]  # noqa: E731
    run_id, recorder = machine.record()["run_id"], process("launcher.start.recorder", machine)
    until(tickets, 60)
    os.kill(recorder, signal.SIGSTOP)
    try:
        os.kill(process("supervisor.pyz", machine), signal.SIGKILL)
        until(lambda: "WAITING to restart" in machine.ddpctl("ps", "hosts.yaml").stdout, 60)
        machine.env["XDG_STATE_HOME"] += "-of-another-machine"
        err = machine.ddpctl("launch", "hosts.yaml", "--no-check", code=3).stderr
        assert f"run {run_id} (" in err and f"is waiting for port {port}" in err
    finally:
        os.kill(recorder, signal.SIGCONT)
    until(lambda: machine.record()["state"] == "SUCCEEDED" and not tickets(), 60)


def test_a_shutdown_of_the_launching_machine_loses_neither_a_started_nor_a_waiting_run(
    machine: Machine,
) -> None:
    """It sends SIGTERM to every process, also to a recorder that started the run itself."""
    # the tickets that the first recorder leaves, for a restart, expire sooner
    status = Path(machine.env["PYTHONPATH"]) / "launcher" / "engines" / "status.py"
    text = status.read_text()
    assert "LEASE = 60.0" in text
    status.write_text(text.replace("LEASE = 60.0", "LEASE = 6.0"))
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    file = machine.folder / "hosts.yaml"
    file.write_text(file.read_text().replace('"auto"', str(port)))

    def detach(name: str) -> Path:
        launch(machine, "when-told", "--detach", "--wait", "--name", name)
        [folder] = (machine.folder / "state").glob(f"ddpctl/runs/{name}-*")
        return folder

    def state(folder: Path) -> str:
        return str(json.loads((folder / "run.json").read_text())["state"])

    def shut_down(folder: Path) -> None:
        os.kill(process(str(folder), machine), signal.SIGTERM)
        until(lambda: not attempt_lock.is_taken_care_of(RunFolder(folder)), 60)

    def end(folder: Path) -> None:
        [kept] = (machine.folder / "home").glob(f".ddpctl/runs/{folder.name}/checkpoints")
        (kept / "go").touch()
        machine.ddpctl("attach", folder.name)
        assert state(folder) == "SUCCEEDED"

    first, second = detach("first"), detach("second")
    shut_down(second)
    assert state(second) == "WAITING"
    attached = machine.start("attach", second.name)
    until(lambda: attempt_lock.is_taken_care_of(RunFolder(second)), 60)
    shut_down(first)
    end(first)
    until(lambda: state(second) == "RUNNING", 60)
    attached.terminate()
    attached.communicate(timeout=60)
    shut_down(second)
    assert state(second) == "RUNNING"
    end(second)


def test_a_run_that_had_to_wait_starts_in_the_folder_of_its_launch(machine: Machine) -> None:
    """Without a workdir, the script is there."""
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    file = machine.folder / "hosts.yaml"
    document = json.loads(file.read_text().replace('"auto"', str(port)))
    del document["job"]["workdir"]
    file.write_text(json.dumps(document))
    (machine.folder / "again.py").write_text(SCRIPT)
    states = {}
    for name in ("first", "second"):
        launch(machine, "when-told", "--detach", "--wait", "--name", name)
        [states[name]] = (machine.folder / "state").glob(f"ddpctl/runs/{name}-*/run.json")
    assert json.loads(states["second"].read_text())["state"] == "WAITING"
    runs = machine.folder / "home" / ".ddpctl" / "runs"
    for state in states.values():
        checkpoints = runs / state.parent.name / "checkpoints"
        until(checkpoints.exists, 60)
        (checkpoints / "go").touch()
        machine.ddpctl("attach", state.parent.name)


def test_a_failure_that_would_happen_again_is_not_restarted(machine: Machine) -> None:
    err = launch(machine, "refuse", code=1)
    assert "not restarting: a failure of kind `exit-code` would happen again" in err
    assert "`ddpctl resume" in err
    [attempt] = machine.record()["attempts"]
    assert attempt["restarts"] == []


def test_three_restarts_that_save_nothing_are_enough(machine: Machine) -> None:
    err = launch(machine, "always", "--max-restarts", "9", code=1)
    assert "3 restarts in a row produced no new checkpoint" in err
    [attempt] = machine.record()["attempts"]
    assert [restart["kind"] for restart in attempt["restarts"]] == ["in-place"] * 3


def test_a_resume_keeps_the_hang_timeout_and_begins_the_count_anew(machine: Machine) -> None:
    launch(machine, "refuse", "--hang-timeout", "77s", "--max-restarts", "1", code=1)
    [hosts] = (machine.folder / "state").glob("ddpctl/runs/*/hosts.yaml")
    hosts.write_text(hosts.read_text().replace("refuse", "always"))
    machine.ddpctl("resume", code=1)
    record = machine.record()
    assert [attempt["by"] for attempt in record["attempts"]] == ["launch", "resume"]
    assert [len(attempt["restarts"]) for attempt in record["attempts"]] == [0, 1]
    assert record["options"]["hang_timeout"] == 77
