"""Two commands for one run at the same time, while one of them starts an attempt."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import FakeCluster
from local_machine import Machine

from launcher.errors import HostUnreachable, NodesFailed, PreflightError, StateError, UsageError
from launcher.follow import detach
from launcher.follow.ctrl_c import Interrupts
from launcher.hosts import Cluster, Host
from launcher.outcomes import Outcome, RunState
from launcher.own_folders import locked
from launcher.plan.launch_options import LaunchOptions
from launcher.runs import attempt_lock
from launcher.runs.run_folder import run_folder
from launcher.ssh.host_connection import HostConnection, connected
from launcher.start import attach, start_nodes
from launcher.start.request import Request
from launcher.start.reservation import Reservation, newest_cancelled, raise_if_cancelled
from launcher.start.run_attempt import run_attempt
from launcher.terminal.console import Console

Make = Callable[..., FakeCluster]
SCRIPT = """
import os, time
while os.environ["DDPCTL_ATTEMPT"] == "2" and not os.path.exists(os.path.expanduser("~/go")):
    time.sleep(0.05)
raise ValueError("boom on purpose")
"""


def reservation(attempt: int, connections: Sequence[HostConnection]) -> Reservation:
    request = Request(Cluster((Host("local"),)), LaunchOptions(), "r1", attempt=attempt)
    return Reservation(request, connections)


def test_an_attempt_can_be_reserved_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    host = Host("local")
    connection = HostConnection(host)

    def reserve(attempt: int) -> None:
        reservation(attempt, [connection]).take(Console(quiet=True))

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
    own = reservation(2, [lost, connection])
    own.take(console)
    own.take(console)
    with pytest.raises(UsageError, match=r"^local: attempt 2 was already started"):
        reservation(2, [lost, connection]).take(console)
    with pytest.raises(NodesFailed, match="gpu0: no answer"):
        reservation(2, [lost]).take(console)


def test_an_attempt_is_lost_to_a_command_that_reserved_it_on_an_earlier_host_in_the_meantime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both of them may wait in line, and the first host was down when this one reserved the attempt."""
    cluster = FakeCluster(tmp_path, monkeypatch, ["gpu0", "gpu1"])
    cluster.hosts["gpu0"].reachable = False
    console = Console(quiet=True)
    with connected([Host("gpu0"), Host("gpu1")]) as connections:
        first = reservation(2, connections)
        first.take(console)
        cluster.hosts["gpu0"].reachable = True
        cluster.hosts["gpu1"].reachable = False
        second = reservation(2, connections)
        second.take(console)
        cluster.hosts["gpu1"].reachable = True
        with pytest.raises(UsageError, match=r"^gpu0: attempt 2 was already started"):
            first.take(console)
    assert second.is_own and not first.is_own


@pytest.fixture
def cancelled_on_gpu0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostConnection:
    """A host called gpu1, with the home of gpu0, where attempt 2 of r1 was reserved and cancelled."""
    uname = tmp_path / "bin" / "uname"
    uname.parent.mkdir()
    uname.write_text('#!/bin/sh\necho "$HOSTNAME_NOW"\n')
    uname.chmod(0o755)
    monkeypatch.setenv("PATH", f"{uname.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HOSTNAME_NOW", "gpu0")
    connection = HostConnection(Host("local"))
    given_up = reservation(2, [connection])
    given_up.take(Console(quiet=True))
    given_up.cancel()
    assert newest_cancelled([connection], "r1", 9) == 2
    monkeypatch.setenv("HOSTNAME_NOW", "gpu1")
    return connection


def test_an_attempt_that_was_cancelled_on_another_host_with_the_same_home_is_known(
    cancelled_on_gpu0: HostConnection,
) -> None:
    """A resume on other hosts must skip it, because the reservation is in the shared home."""
    assert newest_cancelled([cancelled_on_gpu0], "r1", 9) == 2


def test_a_stop_on_another_host_with_the_same_home_does_not_keep_an_attempt_from_starting(
    cancelled_on_gpu0: HostConnection,
) -> None:
    """A stop that could not be confirmed earlier is completed there, while a later attempt waits here."""
    raise_if_cancelled("r1", 2, [cancelled_on_gpu0])


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
    refusal = told[codes.index(2)][1]  # which message depends on when the refused command looked
    refusals = ("attempt 2 was already started", "is being started", "still running")
    assert any(words in refusal for words in refusals), refusal
    assert "boom on purpose" in told[codes.index(1)][1]
    assert machine.left() == []


def failed_run(cluster: FakeCluster) -> str:
    """Return the id of a run that has failed. Its next attempt will succeed."""
    cluster.nodes_end(1)
    assert cluster.launch()[0] == 1
    cluster.nodes_end(0)
    return str(cluster.record["run_id"])


def test_attach_waits_for_an_attempt_that_another_command_is_starting(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster("gpu0")
    folder = run_folder(failed_run(cluster))
    waits, outcomes = threading.Event(), list[Outcome]()
    thread = threading.Thread(
        target=lambda: outcomes.append(attach.attach(folder, Console(quiet=True)))
    )

    def attach_now(*_: object) -> None:
        assert folder.load().state is RunState.PENDING
        thread.start()
        while thread.is_alive() and not waits.wait(0.05):
            pass

    def sleep(seconds: float) -> None:
        waits.set()
        time.sleep(seconds / 50)

    monkeypatch.setattr("launcher.start.run_attempt.distribute_checkpoint", attach_now)
    monkeypatch.setattr(attach, "time", SimpleNamespace(sleep=sleep))
    code, _, err = cluster.ddpctl("resume")
    thread.join()
    assert code == 0, err
    assert [outcome.state for outcome in outcomes] == [RunState.SUCCEEDED]
    assert folder.load().state is RunState.SUCCEEDED


def test_a_run_that_another_command_is_starting_gets_no_recorder_as_well(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both would restart the run, and run --on-event."""
    cluster = fake_cluster("gpu0")
    folder = run_folder(failed_run(cluster))
    states: list[RunState] = []

    def wait_elsewhere(*_: object) -> None:
        """As Run.wait does in another process."""
        states.append(folder.load().state)
        with monkeypatch.context() as other:
            other.setattr(attempt_lock, "_held", {}, raising=False)
            detach.ensure_recorder(folder, states[0])

    monkeypatch.setattr("launcher.start.run_attempt.distribute_checkpoint", wait_elsewhere)
    code, _, err = cluster.ddpctl("resume")
    assert (code, states, cluster.recorders) == (0, [RunState.PENDING], []), err


def test_an_attempt_that_another_command_is_starting_is_not_followed_by_one_more(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster("gpu0")
    run_id = failed_run(cluster)
    seconds: list[tuple[int, str, str]] = []

    def resume_too(*_: object) -> None:
        if not seconds:
            seconds.append((0, "", ""))
            seconds[0] = cluster.ddpctl("resume")

    monkeypatch.setattr("launcher.start.run_attempt.distribute_checkpoint", resume_too)
    code, _, err = cluster.ddpctl("resume")
    [(second, _, refusal)] = seconds
    assert (code, second) == (0, 2), err + refusal
    assert f"another command is starting attempt 2 of {run_id}; follow it with" in refusal
    assert [each["state"] for each in cluster.record["attempts"]] == ["FAILED", "SUCCEEDED"]


def test_while_a_resume_checks_and_pushes_a_second_one_is_refused(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster("gpu0")
    run_id = failed_run(cluster)
    seconds: list[tuple[int, str, str]] = []

    def resume_too(*_: object) -> None:
        assert not seconds, "the second one pushes as well"
        seconds.append((0, "", ""))
        with monkeypatch.context() as other:
            other.setattr(attempt_lock, "_held", {})
            seconds[0] = cluster.ddpctl("resume")
        raise PreflightError("something is wrong")

    monkeypatch.setattr("launcher.start.run_attempt.push", resume_too)
    assert cluster.ddpctl("resume")[0] == 3
    [(second, _, refusal)] = seconds
    assert second == 2, refusal
    assert f"another command on this machine is starting attempt 2 of {run_id}; " in refusal
    assert f"cancel it with `ddpctl kill {run_id}`" in refusal


def test_a_resume_that_loses_a_race_does_not_record_that_the_attempt_of_the_other_failed(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster("gpu0")
    folder = run_folder(failed_run(cluster))
    before = folder.load()
    states: list[RunState] = []

    def resume_too(*_: object) -> None:
        if not states:
            states.append(folder.load().state)
            options, run_id = LaunchOptions(), before.run_id
            late = Request(folder.kept_cluster(), options, run_id, before, 2, "resume")
            with pytest.raises(UsageError, match="attempt 2 was already started"):
                run_attempt(late, Interrupts(), Console(quiet=True))
            states.append(folder.load().state)

    monkeypatch.setattr("launcher.start.run_attempt.distribute_checkpoint", resume_too)
    code, _, err = cluster.ddpctl("resume")
    assert code == 0, err
    assert states == [RunState.PENDING, RunState.PENDING]


@pytest.mark.parametrize("looked_before", [True, False])
def test_nodes_that_another_machine_has_created_and_not_started_yet_are_not_removed(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch, looked_before: bool
) -> None:
    cluster = fake_cluster(master_port="auto")
    failed_run(cluster)
    other = cluster.folder / "other"
    shutil.copytree(cluster.state, other)
    refusals: list[tuple[int, str, str]] = []

    def resume_elsewhere(*arguments: Any) -> None:
        if not refusals:
            refusals.append((0, "", ""))
            with monkeypatch.context() as there:
                there.setenv("XDG_STATE_HOME", str(other))
                if looked_before:
                    there.setattr("launcher.start.resume.list_nodes", lambda *_: ([], {}))
                refusals[0] = cluster.ddpctl("resume")
        start_nodes.start_nodes(*arguments)

    monkeypatch.setattr("launcher.start.run_attempt.start_nodes", resume_elsewhere)
    code, _, err = cluster.ddpctl("resume")
    [(refused, _, refusal)] = refusals
    assert (code, refused) == (0, 2), err + refusal
    what = "is being started; follow it" if looked_before else "is still running or waiting on gpu"
    assert what in refusal
    assert {node.attempt for node in cluster.nodes} == {2}


def test_on_a_file_system_without_locks_a_run_whose_start_crashed_can_be_resumed(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    cluster = fake_cluster("gpu0")
    folder = run_folder(failed_run(cluster))
    record = folder.load()
    record.attempt.state = RunState.PENDING
    folder.try_save(record, Console(quiet=True))
    monkeypatch.setattr(fcntl, "flock", unsupported)
    code, _, err = cluster.ddpctl("resume")
    assert code == 0, err


def test_a_resume_does_not_wait_for_a_recorder_that_still_follows_an_earlier_attempt(
    fake_cluster: Make,
) -> None:
    """As after a kill, while all hosts of that attempt are without power."""
    cluster = fake_cluster("gpu0")
    folder = run_folder(failed_run(cluster))
    with contextlib.ExitStack() as recorder:
        recorder.enter_context(locked(folder.attempt_lock(1)))
        release = threading.Timer(30, recorder.close)
        release.start()
        code, _, err = cluster.ddpctl("resume")
        assert release.is_alive(), "it waited"
        release.cancel()
    assert code == 0, err


@pytest.mark.parametrize("how", ["failed", "killed", "crashed"])
def test_an_attempt_that_ended_before_it_had_folders_does_not_block_a_resume_on_another_machine(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    cluster = fake_cluster()
    run_id = failed_run(cluster)
    other = cluster.folder / "other"
    shutil.copytree(cluster.state, other)

    def end(*_: object) -> None:
        if how == "killed":
            cluster.ddpctl("kill", run_id, "--yes")
        else:
            raise NodesFailed({"gpu0": HostUnreachable("no answer", host="gpu0")})

    with monkeypatch.context() as first:
        first.setattr("launcher.start.run_attempt.distribute_checkpoint", end)
        if how == "crashed":
            first.setattr(Reservation, "cancel", lambda _: None)
        code, _, err = cluster.ddpctl("resume")
    assert code == (7 if how == "killed" else 4), err
    monkeypatch.setenv("XDG_STATE_HOME", str(other))
    if how == "crashed":
        code, _, err = cluster.ddpctl("resume")
        remedy = f"run `ddpctl ps HOSTS` to see it; if it is not listed, run `ddpctl kill {run_id}`"
        assert (code, remedy in err) == (2, True), err
        code, _, err = cluster.ddpctl("kill", run_id, "--yes")
        assert code == 0, err
    code, _, err = cluster.ddpctl("resume")
    assert code == 0, err
    assert {node.attempt for node in cluster.nodes} == {3}


def test_an_attempt_that_could_not_be_recorded_does_not_block_the_next_resume(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disk_is_full(*_: object) -> None:
        raise StateError("No space left on device", "make room")

    cluster = fake_cluster()
    failed_run(cluster)
    with monkeypatch.context() as full:
        full.setattr(Request, "save_pending", disk_is_full)
        code, _, err = cluster.ddpctl("resume")
    assert (code, "No space left" in err) == (1, True), err
    code, _, err = cluster.ddpctl("resume")
    assert code == 0, err
