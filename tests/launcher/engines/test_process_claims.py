"""Claims of the process engine: files in one folder per user, which all users of the host can read."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest

from launcher.engines import process
from launcher.engines.process import Processes
from launcher.engines.status import ContainerState, NodeStatus
from launcher.errors import CommandFailed
from launcher.hosts import Host
from launcher.ssh.host_connection import HostConnection

LABELS = {
    "io.ddpctl.run-id": "r",
    "io.ddpctl.attempt": "1",
    "io.ddpctl.node-rank": "0",
    "io.ddpctl.nnodes": "1",
    "io.ddpctl.owner": "ann",
    "io.ddpctl.gpus": "GPU-1",
}
NAME = "ddpctl-r-0"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CLAIM", "LIST_CLAIMS", "WITHDRAW", "START", "STOP"):
        text = getattr(process, name).replace("/tmp/ddpctl-claims", f"{tmp_path}/claims")
        monkeypatch.setattr(process, name, text)
    return tmp_path / f"claims-{os.getuid()}"


@pytest.fixture
def engine() -> Processes:
    return Processes(HostConnection(Host("local")))


@pytest.fixture
def control(folder: Path, tmp_path: Path) -> Path:
    """The control folder of a node, beside the folder of claims."""
    folder.mkdir()
    (tmp_path / "control").mkdir()
    return tmp_path / "control"


def claimed(engine: Processes) -> list[tuple[str, tuple[str, ...]]]:
    return [(claim.state.value, claim.gpus) for claim in engine.claims()]


def test_a_place_in_line_is_shown_until_it_is_withdrawn(engine: Processes, folder: Path) -> None:
    assert engine.claims() == []
    engine.create_ticket(NAME, LABELS)
    [ticket] = engine.claims()
    assert (ticket.state, ticket.gpus, ticket.expired) == ("waiting", ("GPU-1",), False)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert engine.withdraw(ticket) and engine.claims() == []


def test_a_claim_that_nobody_renews_expires(engine: Processes, folder: Path) -> None:
    engine.create_ticket(NAME, LABELS)
    os.utime(folder / f"{NAME}.waiting", (1e9, 1e9))
    assert [claim.expired for claim in engine.claims()] == [True]


def test_the_claim_of_a_process_lasts_as_long_as_the_process(
    engine: Processes, folder: Path
) -> None:
    folder.mkdir()
    child = subprocess.Popen(["sleep", "600"])
    began = start_time(child.pid)
    running = folder / f"{NAME}.running"
    running.write_text(f"{child.pid} {began}\n{json.dumps(LABELS)}\n")
    assert claimed(engine) == [("running", ("GPU-1",))]
    other = NodeStatus(state=ContainerState.CREATED, handle=NAME)
    assert not engine.withdraw(other)  # it has started
    running.write_text(f"{child.pid} {began + 1}\n{json.dumps(LABELS)}\n")
    assert claimed(engine) == []  # another process with the same id
    running.write_text(f"{child.pid} {began}\n{json.dumps(LABELS)}\n")
    child.kill()
    child.wait()
    assert claimed(engine) == [] and not running.exists()


def start_time(pid: int) -> int:
    """When the process has started, in clock ticks."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[19])


def meanwhile(monkeypatch: pytest.MonkeyPatch, script: str, program: str, deed: str) -> None:
    """Do `deed` on the host each time just before the script runs the program."""
    function = f'{program}() {{ {deed}; command {program} "$@"; }}\n'
    monkeypatch.setattr(process, script, function + getattr(process, script))


def test_a_node_that_starts_while_its_claim_is_withdrawn_keeps_it(
    engine: Processes, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir()
    (folder / f"{NAME}.created").write_text(f"-\n{json.dumps(LABELS)}\n")
    [claim] = engine.claims()
    start = f"command mv {folder}/{NAME}.created {folder}/{NAME}.running"
    meanwhile(monkeypatch, "WITHDRAW", "rm", start)
    assert not engine.withdraw(claim)
    assert claimed(engine) == [("running", ("GPU-1",))]


def test_two_first_nodes_at_the_same_time_share_one_folder(
    engine: Processes, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meanwhile(monkeypatch, "CLAIM", "mkdir", f"command mkdir {folder}")
    engine.create_ticket(NAME, LABELS)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert claimed(engine) == [("waiting", ("GPU-1",))]


def test_a_node_that_is_stopped_while_it_starts_does_not_go_on(
    engine: Processes, folder: Path, control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = subprocess.Popen(["sleep", "600"])
    (folder / f"{NAME}.running").write_text("-\n")
    starts = f"echo {child.pid} {start_time(child.pid)} > {control}/pid"
    meanwhile(monkeypatch, "STOP", "sleep", starts)
    engine.stop(NodeStatus(run_id="r", node_rank=0, handle=str(control)), 0)
    assert child.wait(10) == -signal.SIGTERM


def test_a_node_that_was_stopped_before_it_starts_cannot_start(
    engine: Processes, folder: Path, control: Path
) -> None:
    created = folder / f"{NAME}.created"
    created.write_text("-\n")
    engine.stop(NodeStatus(run_id="r", node_rank=0, handle=str(control)), 0)
    assert not created.exists()
    created.write_text("-\n")  # claimed after the stop, which has removed the labels
    with pytest.raises(CommandFailed, match="another command has withdrawn it"):
        arguments = str(control), NAME, "", "0", "sh"
        engine._script("start the node", process.START, *arguments, stdin="{}")


def start(engine: Processes, folder: Path, control: Path, *supervisor: str) -> None:
    """Claim the node's GPUs and start it."""
    (control / "labels.json").write_text(json.dumps(LABELS))
    (folder / f"{NAME}.created").write_text("-\n")
    arguments = str(control), NAME, "", "0", *supervisor
    engine._script("start the node", process.START, *arguments, stdin="{}")


def test_a_node_whose_files_do_not_fit_on_the_disk_does_not_run_unseen(
    engine: Processes, folder: Path, control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = process.START.replace('| replace "$control/pid"', "| false")
    monkeypatch.setattr(process, "START", full)
    began = time.monotonic()
    with pytest.raises(CommandFailed, match=r"check the free space"):
        start(engine, folder, control, "sh", "-c", "sleep 20; : done")
    while not (control / "exit").exists():
        time.sleep(0.01)
    assert (control / "exit").read_text() == "137\n" and time.monotonic() - began < 15


def test_a_supervisor_that_does_not_handle_signals_yet_ends_with_sigterm(
    engine: Processes, folder: Path, control: Path
) -> None:
    script = 'kill -s TERM "$$"; echo ignored > "$0"'
    start(engine, folder, control, "sh", "-c", script, str(control / "out"))
    while not (control / "exit").exists():
        time.sleep(0.01)
    assert (control / "exit").read_text() == "143\n"


def test_systemd_tmpfiles_spares_the_claims_while_a_node_runs(
    engine: Processes, folder: Path, control: Path
) -> None:
    """It deletes old files only from folders on which it gets this lock."""

    def can_delete() -> bool:
        tried = subprocess.run(["flock", "-n", folder, "true"], check=False)
        return tried.returncode == 0

    script = 'until [ -e "$0" ]; do sleep 0.05; done'
    start(engine, folder, control, "sh", "-c", script, str(control / "end"))
    while can_delete():  # until the test's time limit
        time.sleep(0.01)
    (control / "end").touch()
    while not can_delete():
        time.sleep(0.01)


@pytest.mark.parametrize("received", ["", '{"io.ddpctl.run-id": "r", "io.ddp'])
def test_a_launch_that_is_killed_while_it_sends_something_claims_and_starts_nothing(
    engine: Processes, folder: Path, control: Path, received: str
) -> None:
    def script(text: str, *args: str) -> int:
        return engine.connection.script(text, *args, stdin=received.encode()).code

    assert script(process.CLAIM, f"{NAME}.created", str(control)) != 0
    assert list(folder.iterdir()) == list(control.iterdir()) == []
    (control / "labels.json").write_text(json.dumps(LABELS))
    (folder / f"{NAME}.created").write_text(f"-\n{json.dumps(LABELS)}\n")
    assert script(process.START, str(control), NAME, "", "0", "true") != 0
    assert claimed(engine) == [("created", ("GPU-1",))] and not (control / "pid").exists()


def test_a_folder_counts_only_if_it_belongs_to_the_user_in_its_name(
    engine: Processes, folder: Path, tmp_path: Path
) -> None:
    forged = tmp_path / f"claims-{os.getuid() + 1}"
    forged.mkdir()
    (forged / f"{NAME}.waiting").write_text(f"-\n{json.dumps(LABELS)}\n")
    (tmp_path / f"claims-{os.getuid()}.link").symlink_to(forged)
    assert claimed(engine) == []


def test_a_name_that_is_taken_blocks_nobody(
    engine: Processes, folder: Path, tmp_path: Path
) -> None:
    folder.symlink_to(tmp_path / "elsewhere")  # as another user could
    engine.create_ticket(NAME, LABELS)
    assert claimed(engine) == [("waiting", ("GPU-1",))]
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.slow
def test_nobody_keeps_the_others_out_with_many_or_large_claims(
    engine: Processes, folder: Path
) -> None:
    folder.mkdir()
    for number in range(300):
        old = folder / f"ddpctl-old-{number}.waiting"
        old.write_text("-\n" + "[" * 60_000)
        os.utime(old, (1e9, 1e9))
    engine.create_ticket(NAME, LABELS)
    for number in range(3):  # more folders of the same user
        (folder.parent / f"{folder.name}.{number}").mkdir()
        (folder.parent / f"{folder.name}.{number}" / "ddpctl-z-0.waiting").write_text("-\n{}")
    assert claimed(engine) == [("waiting", ("GPU-1",))]
    output = engine._script("list", process.LIST_CLAIMS).stdout
    assert output.count(b"\0") <= 1 + 4 * 256 and len(output) < 3_000_000


def test_nobody_keeps_the_others_out_with_thousands_of_folders(
    engine: Processes, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(300):
        (tmp_path / f"claims-{os.getuid() + 1}.{number}").mkdir()
        (tmp_path / f"claims-{os.getuid()}.\n{number}").mkdir()
    started = tmp_path / "started"
    for script in ("CLAIM", "LIST_CLAIMS"):
        meanwhile(monkeypatch, script, "stat", f"echo >> {started}")
    engine.create_ticket(NAME, LABELS)
    assert claimed(engine) == [("waiting", ("GPU-1",))]
    assert len(started.read_bytes()) < 10  # each takes a few milliseconds


def test_a_claim_that_becomes_a_pipe_while_it_is_listed_holds_nobody(
    engine: Processes, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir()
    claim = folder / "ddpctl-trap-0.waiting"
    claim.write_text("-\n{}")
    for program in ("head", "dd"):
        swap = f"case $* in *trap*) rm {claim}; mkfifo {claim} ;; esac"
        meanwhile(monkeypatch, "LIST_CLAIMS", program, swap)
    engine.create_ticket(NAME, LABELS)
    assert claimed(engine) == [("waiting", ("GPU-1",))]


def test_a_node_that_starts_while_the_claims_are_listed_is_listed(
    engine: Processes, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, another launch could take its GPUs."""
    folder.mkdir()
    created = folder / f"{NAME}.created"
    created.write_text(f"-\n{json.dumps(LABELS)}\n")
    start = f"case $* in *.created*) mv {created} {folder}/{NAME}.running ;; esac"
    meanwhile(monkeypatch, "LIST_CLAIMS", "dd", start)
    assert claimed(engine) == [("running", ("GPU-1",))]


def test_what_is_no_file_is_skipped(engine: Processes, folder: Path) -> None:
    folder.mkdir()
    os.mkfifo(folder / "a.created")
    (folder / "b.running").symlink_to("/etc/passwd")
    (folder / "c.waiting").mkdir()
    (folder / "d.other").write_text(json.dumps(LABELS))
    (folder / "e.waiting").write_text("-\n[")
    assert claimed(engine) == []
