"""Launches that want the same GPUs, on fake hosts: claims, waiting in line, any free hosts."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import IO, Any

import pytest
from fakes import FakeCluster, FakeDocker, FakeNode

from launcher.engines.status import LEASE
from launcher.errors import (
    DdpctlError,
    PreflightError,
    PushFailed,
    RunKilled,
    StateError,
    UsageError,
)
from launcher.facts.gather import gather
from launcher.follow import detach
from launcher.follow.ctrl_c import Interrupts
from launcher.follow.session import Session
from launcher.hosts import load
from launcher.outcomes import Exit, Outcome, RunState
from launcher.own_folders import locked
from launcher.plan.build import PlanInputs
from launcher.plan.launch_options import LaunchOptions
from launcher.run_id import new_run_id
from launcher.runs import attempt_lock
from launcher.runs.record import RunRecord
from launcher.runs.run_folder import RunFolder
from launcher.ssh.host_connection import HostConnection, connected
from launcher.ssh.many import try_each
from launcher.start import attach, recorder, waiting_line
from launcher.start import run_attempt as run_attempt_module
from launcher.start import settle_with_rivals as settle_module
from launcher.start import start_nodes as start_nodes_module
from launcher.start.check_push_plan import CheckedHosts
from launcher.start.choose_hosts import choose_hosts
from launcher.start.fill_node_folders import fill_folders
from launcher.start.planned_attempt import PlannedAttempt
from launcher.start.request import Request
from launcher.start.reservation import Reservation, raise_if_cancelled
from launcher.start.run_attempt import run_attempt
from launcher.start.settle_with_rivals import (
    Claims,
    free_hosts,
    list_claims,
    settle_with_rivals,
)
from launcher.start.start_nodes import create_nodes, remove_nodes, start_nodes
from launcher.start.tickets import Tickets
from launcher.stop.stop_on_host import Stop
from launcher.terminal.console import Console

pytestmark = pytest.mark.slow  # most of these tests start several runs
Make = Callable[..., FakeCluster]


@pytest.fixture
def make(fake_cluster: Make, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Hosts with two GPUs each."""
    monkeypatch.setattr(waiting_line, "POLL", 0.05)
    monkeypatch.setattr(waiting_line, "TICK", 0.01)
    monkeypatch.setattr(recorder, "report_ready", lambda: None)
    return lambda *names: fake_cluster(*names, gpus=2, master_port="auto")


def waits_behind_another(cluster: FakeCluster) -> str:
    """Launch a run, and a second one that waits in line for its GPUs. Return the id of the second."""
    cluster.launch("--detach")
    return cluster.launch("--wait", "--detach")[1].strip()


def record(cluster: FakeCluster, run_id: str) -> dict[str, object]:
    path = cluster.state / "ddpctl" / "runs" / run_id / "run.json"
    return dict(json.loads(path.read_text()))


def run_recorder(cluster: FakeCluster, run_id: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["r", str(cluster.state / "ddpctl" / "runs" / run_id)])
    return recorder.main()


def once(true: Callable[[], object], do: Callable[[], object]) -> threading.Thread:
    """Does something in another thread as soon as a condition holds."""

    def work() -> None:
        end = time.monotonic() + 60
        while not true() and time.monotonic() < end:
            time.sleep(0.01)
        do()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def kill_from_elsewhere(cluster: FakeCluster, run_id: str) -> None:
    """Kill a run as from a machine that has only the hosts file."""
    with connected(load(cluster.hosts_file).hosts) as connections:
        stopped, failures = try_each(connections, Stop(run_id, "docker", 1.0, ()).on_host)
    assert not failures and not any(each.left for each in stopped.values())


def unchecked(
    request: Request,
    connections: Sequence[HostConnection],
    spares: Sequence[HostConnection],
    console: Console,
) -> CheckedHosts:
    """Check nothing, as with --no-check, which `resume` does not have."""
    return CheckedHosts(connections, gather(connections))


def claim(planned: PlannedAttempt) -> list[DdpctlError]:
    """Create the nodes. If rivals come first, remove the nodes and return an error for each rival."""
    console = Console(quiet=True)
    create_nodes(planned, {}, {}, console)
    if reasons := settle_with_rivals(planned, console, time.sleep):
        remove_nodes(planned, console, folders=True)
    return reasons


def end_all(nodes: list[FakeNode]) -> None:
    for node in nodes:
        node.end(0)


def test_a_launch_that_finds_a_gpu_taken_says_by_whom_and_leaves_nothing(make: Make) -> None:
    cluster = make("gpu0", "gpu1", "gpu2")
    first = cluster.launch("--detach", "--include", "gpu0@gpu1:1")[1].strip()
    code, _, err = cluster.launch("--include", "gpu1:0,1@gpu2")
    assert code == 3
    [line] = [line for line in err.splitlines() if "error" in line]
    assert f"gpu1: run {first} (" in line and " has GPU 1 (since 20" in line
    assert "--wait" in line
    assert {node.run_id for node in cluster.nodes} == {first}


def test_hosts_without_gpus_are_never_refused(fake_cluster: Make) -> None:
    cluster = fake_cluster(master_port="auto")
    assert [cluster.launch("--detach")[0] for _ in range(2)] == [0, 0]


def test_a_claim_that_its_launch_left_behind_is_removed_by_the_hosts_own_clock(make: Make) -> None:
    cluster = make("gpu0")
    host = cluster.hosts["gpu0"]
    left = cluster.launch("--detach")[1].strip()
    [node] = cluster.nodes
    node.state = "created"  # as if the launch had died before the start
    host.ahead = 30.0  # the clock of a host may be anything: the claim is 30 s old
    code, _, err = cluster.launch("--detach")
    assert code == 3 and f"run {left} (" in err and "is about to use GPUs 0-1" in err
    host.ahead = 90.0
    code, second, err = cluster.launch("--detach")
    assert code == 0, err
    assert {node.run_id for node in cluster.nodes} == {second.strip()}


def test_of_pairs_that_race_one_starts_and_the_other_leaves_nothing(make: Make) -> None:
    cluster = make("gpu0", "gpu1", "gpu2")
    given = load(cluster.hosts_file)
    chance = random.Random(7)

    def launch(number: int, names: list[str], barrier: threading.Barrier) -> str | None:
        hosts = tuple(host for host in given.hosts if host.name in names)
        cluster_of_run = type(given)(hosts, given.job)
        since = float(chance.randrange(1, 4))
        wanted = Request(cluster_of_run, LaunchOptions(), f"race-{number}", since=since)
        with connected(hosts) as connections:
            plan = wanted.plan(PlanInputs(gather(connections), ("i",) * len(hosts)))
            barrier.wait()
            planned = PlannedAttempt(plan, connections)
            if claim(planned):
                return None
            start_nodes(planned, {}, Console(quiet=True))
            return plan.run_id

    for pair in range(12):
        shared = chance.choice(list(cluster.hosts))
        others = [name for name in cluster.hosts if name != shared]
        names = [[shared, *chance.sample(others, chance.randrange(3))] for _ in range(2)]
        barrier = threading.Barrier(2)
        with ThreadPoolExecutor(2) as pool:
            outcomes = list(pool.map(launch, (2 * pair, 2 * pair + 1), names, [barrier] * 2))
        [winner] = [run_id for run_id in outcomes if run_id]
        assert {node.run_id for node in cluster.nodes} == {winner}
        assert {node.state for node in cluster.nodes} == {"running"}
        assert {node.host for node in cluster.nodes} == set(names[outcomes.index(winner)])
        for host in cluster:
            host.nodes.clear()


def test_a_launch_waits_until_the_gpus_are_free(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make()
    first = cluster.launch("--detach")[1].strip()
    running = list(cluster.nodes)
    cluster.nodes_end(0)
    to_the_end, left = Session.to_the_end, []

    def followed(session: Session) -> Outcome:
        left.extend(cluster.tickets)
        return to_the_end(session)

    monkeypatch.setattr(Session, "to_the_end", followed)
    once(lambda: len(cluster.tickets) == 2, lambda: end_all(running))
    code, _, err = cluster.launch("--wait")
    assert code == 0, err
    assert f"is waiting: gpu[0-1]: run {first} (" in err
    assert left == [], "tickets go when the run starts, not when it ends"


def test_a_wait_ends_after_its_duration(make: Make) -> None:
    cluster = make("gpu0")
    first = cluster.launch("--detach")[1].strip()
    code, _, err = cluster.launch("--wait-limit", "1s")
    assert code == 3 and "gave up waiting" in err and first in err
    assert cluster.tickets == [] and {node.run_id for node in cluster.nodes} == {first}


def test_a_wait_in_which_each_chosen_host_is_lost_ends_after_its_duration(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make("gpu0", "gpu1")
    end = time.monotonic() + 30

    def refuse(planned: PlannedAttempt, *_: object) -> list[DdpctlError]:
        assert time.monotonic() < end, "it waits for ever"
        return [PreflightError("another run was faster", host="gpu0")]

    monkeypatch.setattr(run_attempt_module, "settle_with_rivals", refuse)
    code, _, err = cluster.launch("--nodes", "1", "--wait-limit", "1s")
    assert code == 3, err
    assert "gpu0: another run was faster; gave up waiting" in err


def test_on_exit_gets_the_exit_code_of_a_wait_that_ctrl_c_ends(make: Make) -> None:
    cluster = make("gpu0")
    cluster.launch("--detach")
    once(lambda: cluster.tickets, lambda: os.kill(os.getpid(), signal.SIGINT))
    note = 'echo "$DDPCTL_STATE $DDPCTL_EXIT_CODE" > note'
    assert cluster.launch("--wait", "--on-exit", note)[0] == 130
    assert (cluster.folder / "note").read_text() == "CANCELLED 130\n"


def test_ctrl_c_ends_a_wait_although_an_engine_hangs(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, hangs, ended = make("gpu0", "gpu1"), threading.Event(), threading.Event()
    cluster.launch("--detach")
    waited, volumes = list[bool](), FakeDocker.volumes

    def answer(engine: FakeDocker, filters: dict[str, Any]) -> dict[str, Any]:
        if cluster.tickets and engine.name == "gpu1":
            hangs.set()
            waited.append(ended.wait(10))
        return volumes(engine, filters)

    monkeypatch.setattr(FakeDocker, "volumes", answer)
    once(hangs.is_set, lambda: os.kill(os.getpid(), signal.SIGINT))
    code, _, err = cluster.launch("--wait")
    assert (code, waited) == (130, []), err  # nothing has waited to the end
    ended.set()


def test_ctrl_c_while_a_run_takes_its_place_in_line_leaves_no_ticket(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, put = make("gpu0", "gpu1"), threading.Event()
    cluster.launch("--detach")
    create = FakeDocker.create_volume

    def press_ctrl_c(engine: FakeDocker, name: str, labels: Any) -> None:
        if engine.name == "gpu1":
            assert put.wait(10)
            os.kill(os.getpid(), signal.SIGINT)
            raise PreflightError("the disk is full", host="gpu1")
        create(engine, name, labels)
        put.set()

    monkeypatch.setattr(FakeDocker, "create_volume", press_ctrl_c)
    code, _, err = cluster.launch("--wait")
    assert code == 130 and put.is_set(), err
    assert cluster.tickets == []


def test_a_wait_that_ctrl_c_ends_is_recorded_before_another_process_may_wait_for_the_run(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make("gpu0")
    cluster.launch("--detach")
    saved, save = [], RunFolder.try_save

    def note(folder: RunFolder, record: RunRecord, console: Console) -> None:
        saved.append((record.state, attempt_lock.is_taken_care_of(folder)))
        save(folder, record, console)

    monkeypatch.setattr(RunFolder, "try_save", note)
    once(lambda: cluster.tickets, lambda: os.kill(os.getpid(), signal.SIGINT))
    assert cluster.launch("--wait")[0] == 130
    assert saved[-1] == (RunState.CANCELLED, True)


@pytest.mark.parametrize(
    ("error", "noted"), [(KeyboardInterrupt, "CANCELLED 130"), (ZeroDivisionError, "FAILED 70")]
)
def test_on_exit_gets_the_exit_code_of_a_start_that_fails(
    make: Make, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], noted: str
) -> None:
    cluster = make("gpu0")

    def claim(*_: object) -> None:
        raise error

    monkeypatch.setattr(run_attempt_module, "settle_with_rivals", claim)
    note = 'echo "$DDPCTL_STATE $DDPCTL_EXIT_CODE" > note'
    code = cluster.launch("--on-exit", note)[0]
    assert (cluster.folder / "note").read_text() == f"{noted}\n" and noted.endswith(f" {code}")


def test_a_detached_run_waits_with_its_recorder_and_is_shown(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make()
    first = cluster.launch("--detach")[1].strip()
    code, out, err = cluster.launch("--wait", "--detach")
    second = out.strip()
    assert code == 0 and cluster.recorders == [first, second], err
    assert record(cluster, second)["state"] == "WAITING"
    shown = cluster.ddpctl("ps", cluster.hosts_file)[1]
    assert f"WAITING for {first}" in shown
    runs = json.loads(cluster.ddpctl("ps", cluster.hosts_file, "--json")[1])["runs"]
    assert {run["run_id"]: (run["state"], run["waits_for"]) for run in runs} == {
        first: ("RUNNING", []),
        second: ("WAITING", [first]),
    }
    running = list(cluster.nodes)
    cluster.nodes_end(0)
    asked = cluster.hosts["gpu0"].count("create")
    once(lambda: cluster.hosts["gpu0"].count("create") > asked, lambda: end_all(running))
    assert run_recorder(cluster, second, monkeypatch) == 0
    assert record(cluster, second)["state"] == "SUCCEEDED"
    assert cluster.tickets == []


def restart_left_in_line(
    number: signal.Signals, fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> tuple[FakeCluster, int]:
    """A launch whose restart waits in line when the signal arrives, and its exit code."""
    cluster = fake_cluster("gpu0", gpus=2, master_port="auto", max_restarts=1)
    monkeypatch.setattr("launcher.start.restart.PAUSES_BY_LAUNCHER", (0.0, 0.0, 0.0))
    cluster.hosts["gpu0"].on_start = lambda node: (
        node.event("rank_exit", rank=0, local_rank=0, pid=7, exit_code=-9, signal="SIGKILL"),
        node.end(1, reason={"kind": "rank", "message": "rank 0 was killed", "node_rank": 0}),
    )

    def refuse_restart(planned: PlannedAttempt, *more: Any) -> list[DdpctlError]:
        if planned.plan.attempt == 1:
            return settle_with_rivals(planned, *more)
        return [PreflightError("another run was faster", host="gpu0")]

    renew = Tickets.renew

    def leave(tickets: Tickets) -> Claims:
        signal.raise_signal(number)
        listed, _ = renew(tickets)
        return {}, dict.fromkeys(listed, PreflightError("another run was faster"))

    with monkeypatch.context() as patch:
        patch.setattr(run_attempt_module, "settle_with_rivals", refuse_restart)
        patch.setattr(Tickets, "renew", leave)
        return cluster, cluster.launch("--wait")[0]


@pytest.mark.usefixtures("make")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGHUP, 130), (signal.SIGQUIT, 0)])
def test_a_restart_that_a_signal_leaves_in_line_keeps_its_place(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    cluster, exit_code = restart_left_in_line(number, fake_cluster, monkeypatch)
    assert exit_code == code
    assert cluster.record["state"] == "WAITING"
    assert cluster.tickets


@pytest.mark.usefixtures("make")
def test_a_restart_that_waits_counts_as_a_restart_after_a_recorder_has_taken_over(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, code = restart_left_in_line(signal.SIGQUIT, fake_cluster, monkeypatch)
    assert code == 0
    [run_id] = cluster.recorders
    assert run_recorder(cluster, run_id, monkeypatch) == 1
    attempts = cluster.record["attempts"]
    assert [(each["state"], each["by"]) for each in attempts] == [
        ("FAILED", "launch"),
        ("FAILED", "restart"),
    ]
    assert cluster.tickets == []


def test_a_resume_that_waits_counts_as_a_resume_after_a_recorder_has_taken_over(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make("gpu0")
    monkeypatch.setattr("launcher.start.run_attempt.check", unchecked)
    cluster.nodes_end(1)
    assert cluster.launch("--wait")[0] == 1
    resumed = cluster.record["run_id"]
    cluster.hosts["gpu0"].on_start = lambda node: None
    assert cluster.launch("--detach")[0] == 0
    assert cluster.ddpctl("resume", resumed, "--detach")[0] == 0
    end_all(cluster.nodes)
    cluster.nodes_end(0)
    assert run_recorder(cluster, resumed, monkeypatch) == 0
    attempts = record(cluster, resumed)["attempts"]
    assert [each["by"] for each in attempts] == ["launch", "resume"]  # type: ignore[attr-defined]


def test_a_detached_run_that_starts_leaves_no_ticket_on_the_hosts_that_it_does_not_use(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make("gpu0", "gpu1")
    cluster.launch("--detach")
    waiting = cluster.launch("--wait", "--detach", "--nodes", "1")[1].strip()
    assert len(cluster.tickets) == 2
    end_all(cluster.nodes)
    cluster.nodes_end(0)
    assert run_recorder(cluster, waiting, monkeypatch) == 0
    assert cluster.tickets == []


def test_a_recorder_gives_up_when_the_wait_that_it_took_over_should_end(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make("gpu0")
    cluster.launch("--detach")
    waiting = cluster.launch("--wait-limit", "1h", "--detach")[1].strip()
    ends = record(cluster, waiting)["attempts"][0]["waiting_until"]
    naps = iter(
        range(500)
    )  # it sleeps while the tickets are renewed; more naps would be waiting on
    clock = SimpleNamespace(time=lambda: ends, sleep=lambda tick: time.sleep(tick + 0 * next(naps)))
    monkeypatch.setattr(waiting_line, "time", clock)
    assert run_recorder(cluster, waiting, monkeypatch) == 3
    assert record(cluster, waiting)["state"] == "FAILED"
    assert cluster.tickets == []


def test_a_detached_run_whose_first_try_fails_leaves_no_ticket(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make("gpu0", "gpu1")
    waiting = waits_behind_another(cluster)
    cluster.hosts["gpu1"].refuses["info"] = cluster.hosts["gpu1"].refuses["create"] = "broken"
    assert run_recorder(cluster, waiting, monkeypatch) != 0
    assert record(cluster, waiting)["state"] == "FAILED"
    assert cluster.tickets == []


def test_a_detached_resume_whose_start_fails_does_not_block_a_resume_on_another_machine(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disk_is_full(*_: object) -> None:
        raise PushFailed("No space left on device", "make room", host="gpu0")

    cluster = make("gpu0")
    monkeypatch.setattr("launcher.start.run_attempt.check", unchecked)
    cluster.nodes_end(1)
    assert cluster.launch("--wait")[0] == 1
    resumed = cluster.record["run_id"]
    other_machine = cluster.folder / "other"
    shutil.copytree(cluster.state, other_machine)
    cluster.hosts["gpu0"].on_start = lambda node: None
    assert cluster.launch("--detach")[0] == 0
    assert cluster.ddpctl("resume", resumed, "--detach")[0] == 0
    end_all(cluster.nodes)
    with monkeypatch.context() as full:
        full.setattr("launcher.start.run_attempt.push", disk_is_full)
        assert run_recorder(cluster, resumed, monkeypatch) == 5
    assert record(cluster, resumed)["state"] == "FAILED"
    cluster.nodes_end(0)
    monkeypatch.setenv("XDG_STATE_HOME", str(other_machine))
    code, _, err = cluster.ddpctl("resume", resumed)
    assert code == 0, err


def recorder_starts_during(
    number: signal.Signals, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Make the signal arrive while the recorder starts."""

    def start_recorder(folder: RunFolder, _: object) -> None:
        cluster.recorders.append(folder.run_id)
        signal.raise_signal(number)

    monkeypatch.setattr(detach, "start_recorder", start_recorder)


@pytest.mark.parametrize("second", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("first", "code"), [(signal.SIGHUP, 130), (signal.SIGQUIT, 0)])
@pytest.mark.parametrize("together", [True, False])
def test_a_signal_after_one_that_leaves_a_waiting_run_does_not_cancel_it(
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    first: signal.Signals,
    code: int,
    second: signal.Signals,
    together: bool,
) -> None:
    cluster = make("gpu0")
    cluster.launch("--detach")
    turn_or_signal = waiting_line.turn_or_signal

    def interrupted(*args: Any) -> int | None:
        for number in (first, second) if together else (first,):
            signal.raise_signal(number)
        return turn_or_signal(*args)

    monkeypatch.setattr(waiting_line, "turn_or_signal", interrupted)
    if not together:
        recorder_starts_during(second, cluster, monkeypatch)
    exit_code, _, err = cluster.launch("--wait")
    assert exit_code == code
    assert f"in line; follow it with `ddpctl attach {cluster.recorders[-1]}`" in err
    assert record(cluster, cluster.recorders[-1])["state"] == "WAITING"
    assert len(cluster.tickets) == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGHUP, 130), (signal.SIGQUIT, 0)])
def test_a_terminal_that_closes_during_the_checks_of_a_run_that_has_waited_leaves_it_to_a_recorder(
    make: Make, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    cluster = make("gpu0")
    cluster.launch("--detach")
    turn_or_signal = waiting_line.turn_or_signal

    def signal_in_checks(*args: Any) -> CheckedHosts:
        signal.raise_signal(number)
        return unchecked(*args)

    def turn_comes(*args: Any) -> int | None:
        end_all(cluster.nodes)
        monkeypatch.setattr("launcher.start.run_attempt.check", signal_in_checks)
        return turn_or_signal(*args)

    monkeypatch.setattr(waiting_line, "turn_or_signal", turn_comes)
    exit_code, _, err = cluster.launch("--wait")
    assert exit_code == code and "the run continues; follow it with" in err, err
    assert record(cluster, cluster.recorders[-1])["state"] == "RUNNING"
    assert cluster.tickets == []


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_a_signal_while_a_waiting_run_is_detached_does_not_cancel_it(
    make: Make, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    cluster = make("gpu0")
    cluster.launch("--detach")
    recorder_starts_during(number, cluster, monkeypatch)
    code, run_id, err = cluster.launch("--wait", "--detach")
    assert code == 130 and cluster.recorders[-1] == run_id.strip(), err
    assert record(cluster, run_id.strip())["state"] == "WAITING"


def test_on_a_file_system_without_locks_a_run_starts_but_does_not_wait_in_line(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    cluster = make("gpu0")
    monkeypatch.setattr(fcntl, "flock", unsupported)
    cluster.launch("--detach")
    assert len(cluster.nodes) == 1
    code, _, err = cluster.launch("--wait")
    assert code == 1, err
    assert cluster.tickets == []


@pytest.mark.parametrize("flags", [("--wait", "--detach"), ("--wait",)])
def test_a_waiting_run_whose_recorder_does_not_start_has_failed_and_says_so(
    make: Make, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    start_recorder, renew = detach.start_recorder, Tickets.renew
    cluster = make("gpu0")
    first = cluster.launch("--detach")[1].strip()

    def leave(tickets: Tickets) -> Claims:
        signal.raise_signal(signal.SIGQUIT)
        return renew(tickets)

    monkeypatch.setattr(Tickets, "renew", leave)
    monkeypatch.setattr(detach, "start_recorder", start_recorder)
    monkeypatch.setattr(detach, "BOOT", "exit('no memory')")
    code, _, err = cluster.launch(*flags)
    assert code == 1
    [error] = [line for line in err.splitlines() if "error: " in line]
    assert "no longer waiting in line, because its recorder did not start: no memory" in error
    assert "the run continues" not in err
    [second] = {path.name for path in cluster.state.glob("ddpctl/runs/*")} - {first}
    assert record(cluster, second)["state"] == "FAILED"
    assert cluster.tickets == []
    end_all(cluster.nodes)
    cluster.nodes_end(0)
    monkeypatch.setattr("launcher.start.run_attempt.check", unchecked)
    assert cluster.ddpctl("resume", second)[0] == 0, "as the remedy says"


def test_kill_ends_a_run_that_waits(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = make()
    first = cluster.launch("--detach")[1].strip()
    second = cluster.launch("--wait", "--detach")[1].strip()
    before = cluster.hosts["gpu0"].count("create_volume")
    renewed = lambda: cluster.hosts["gpu0"].count("create_volume") > before  # noqa: E731
    once(renewed, lambda: kill_from_elsewhere(cluster, second))
    assert run_recorder(cluster, second, monkeypatch) == 7
    assert record(cluster, second)["state"] == "CANCELLED"
    assert {node.run_id for node in cluster.nodes} == {first}
    third = cluster.launch("--wait", "--detach")[1].strip()
    code, _, err = cluster.ddpctl("kill", third)
    assert code == 0 and "stopped, nothing left" in err
    assert cluster.tickets == [] and record(cluster, third)["state"] == "CANCELLED"


def test_attach_says_how_a_run_that_waits_has_ended(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make()
    second = waits_behind_another(cluster)
    waited: list[float] = []

    def kill_instead(seconds: float) -> None:
        if not waited:
            waited.append(seconds)
            assert cluster.ddpctl("kill", second)[0] == 0

    monkeypatch.setattr(attach, "time", SimpleNamespace(sleep=kill_instead))
    code, _, err = cluster.ddpctl("attach", second)
    assert f"run {second} is waiting in line; `ddpctl ps` shows what it is waiting for" in err
    assert code == 7 and f"ddpctl: run {second} cancelled" in err, err


def test_attach_starts_a_recorder_when_the_process_that_waits_has_died(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make("gpu0")
    waiting = waits_behind_another(cluster)
    folder = RunFolder(cluster.state / "ddpctl" / "runs" / waiting)
    cluster.recorders.clear()
    looks: list[float] = []

    with contextlib.ExitStack() as process:
        process.enter_context(locked(folder.attempt_lock(1)))

        def look_again(seconds: float) -> None:
            assert cluster.recorders == [waiting] * (len(looks) > 2)
            looks.append(seconds)
            if len(looks) == 3:
                process.close()
            assert len(looks) < 9, "it waits for ever"

        monkeypatch.setattr(attach, "time", SimpleNamespace(sleep=look_again))
        code, _, err = cluster.ddpctl("attach", waiting)
    assert code == 1
    assert f"{waiting}: its recorder stopped before the run started (see " in err
    assert cluster.recorders == [waiting], "it is started once"


def test_attach_does_not_wait_for_a_start_during_which_the_launch_has_died(make: Make) -> None:
    cluster = make("gpu0")
    waiting = waits_behind_another(cluster)
    folder = RunFolder(cluster.state / "ddpctl" / "runs" / waiting)
    cluster.recorders.clear()
    pending = folder.load()
    pending.attempt.state = RunState.PENDING
    folder.save(pending)
    assert attach.wait_for_start(folder, Console(quiet=True)).state is RunState.PENDING
    assert cluster.recorders == []


def test_attach_starts_no_second_recorder_before_the_first_one_was_refused(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make("gpu0")
    first = cluster.launch("--detach")[1].strip()
    waiting = cluster.launch("--wait", "--detach")[1].strip()

    def kill(_: float) -> None:
        assert cluster.ddpctl("kill", waiting)[0] == 0

    monkeypatch.setattr(attach, "time", SimpleNamespace(sleep=kill))
    folder = RunFolder(cluster.state / "ddpctl" / "runs" / waiting)
    with locked(folder.attempt_lock(1)):
        assert cluster.ddpctl("attach", waiting)[0] == 7
    assert cluster.recorders == [first, waiting]


def test_of_two_attaches_at_the_same_moment_one_starts_a_recorder(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make("gpu0")
    waiting = waits_behind_another(cluster)
    cluster.recorders.clear()
    folder = RunFolder(cluster.state / "ddpctl" / "runs" / waiting)
    both_saw_none, is_taken_care_of = threading.Barrier(2), attempt_lock.is_taken_care_of

    def seen_by_both(folder: RunFolder) -> bool:
        found = is_taken_care_of(folder)
        with contextlib.suppress(threading.BrokenBarrierError):
            both_saw_none.wait(1.0)
        return found

    with contextlib.ExitStack() as recorders:

        def start_recorder(folder: RunFolder, lock: IO[str]) -> None:
            cluster.recorders.append(folder.run_id)
            recorders.enter_context(os.fdopen(os.dup(lock.fileno())))  # as a recorder inherits it

        def end(_: float) -> None:
            record = folder.load()
            record.attempt.state = RunState.CANCELLED
            folder.save(record)

        monkeypatch.setattr(detach, "start_recorder", start_recorder)
        monkeypatch.setattr(attempt_lock, "is_taken_care_of", seen_by_both)
        monkeypatch.setattr(attach, "time", SimpleNamespace(sleep=end))
        with ThreadPoolExecutor(2) as pool:
            console = Console(quiet=True)
            both = [pool.submit(attach.wait_for_start, folder, console) for _ in range(2)]
            assert {each.result().state for each in both} == {RunState.CANCELLED}
    assert cluster.recorders == [waiting]


@contextlib.contextmanager
def place_in_line(cluster: FakeCluster) -> Iterator[Tickets]:
    """A run's place in line, on all hosts."""
    given = load(cluster.hosts_file)
    with connected(given.hosts) as connections:
        inputs = PlanInputs(gather(connections), ("i",))
        request = Request(given, LaunchOptions(), "later", since=9e9)
        Reservation(request, connections).take(Console(quiet=True))
        with Tickets(request, connections) as place:
            place.hold(request.planned(connections, inputs))
            yield place


def test_a_kill_during_a_long_push_is_not_forgotten(make: Make) -> None:
    cluster = make("gpu0")
    with place_in_line(cluster) as place:
        kill_from_elsewhere(cluster, "later")
        assert cluster.tickets == []
        with pytest.raises(RunKilled):
            raise_if_cancelled("later", 1, place.planned.connections)
        with pytest.raises(RunKilled):
            place.renew()
    assert cluster.tickets == []


def test_a_kill_while_a_ticket_is_renewed_is_not_forgotten(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make("gpu0")
    with place_in_line(cluster) as place:
        cluster.hosts["gpu0"].ahead = LEASE / 2  # old enough to be renewed
        create = FakeDocker.create_volume

        def killed_just_before(docker: FakeDocker, *args: Any, **kwargs: Any) -> None:
            kill_from_elsewhere(cluster, "later")
            create(docker, *args, **kwargs)

        monkeypatch.setattr(FakeDocker, "create_volume", killed_just_before)
        with pytest.raises(RunKilled):
            place.renew()
    assert cluster.tickets == []


def test_another_machine_sees_a_run_that_waits_and_can_kill_it(make: Make) -> None:
    cluster = make()
    waiting = waits_behind_another(cluster)
    cluster.forget()
    assert f"{waiting}  " in cluster.ddpctl("ps", cluster.hosts_file)[1]
    code, _, err = cluster.ddpctl("attach", waiting, "--hosts", cluster.hosts_file)
    assert code == 2 and "is waiting in line and has nothing to show yet" in err
    assert cluster.ddpctl("kill", waiting, "--hosts", cluster.hosts_file)[0] == 0
    assert cluster.tickets == []


def test_nobody_is_overtaken_but_by_a_run_that_wants_none_of_the_same_gpus(make: Make) -> None:
    cluster = make("gpu0", "gpu1", "gpu2")
    cluster.launch("--detach", "--include", "gpu0")
    waiting = cluster.launch("--detach", "--wait", "--include", "gpu0@gpu1")[1].strip()
    code, _, err = cluster.launch("--detach", "--include", "gpu1")
    assert code == 3 and f"gpu1: run {waiting} (" in err and "is waiting for GPUs 0-1" in err
    assert cluster.launch("--detach", "--include", "gpu2")[0] == 0


def test_a_ticket_of_a_dead_launch_does_not_block_others(make: Make) -> None:
    cluster = make("gpu0")
    cluster.launch("--detach")
    cluster.launch("--detach", "--wait")
    [node] = cluster.nodes
    node.end(0)
    code, _, err = cluster.launch("--detach")
    assert code == 3 and "is waiting for GPUs 0-1" in err
    cluster.hosts["gpu0"].ahead = 90.0
    code, _, err = cluster.launch("--detach")
    assert code == 0, err
    assert cluster.tickets == []


def test_clean_removes_the_tickets_of_launches_that_have_gone(make: Make) -> None:
    cluster = make("gpu0")
    cluster.launch("--detach")
    cluster.launch("--detach", "--wait")
    [node] = cluster.nodes
    node.end(0)
    assert cluster.ddpctl("clean", cluster.hosts_file, "-y")[0] == 0
    assert len(cluster.tickets) == 1
    cluster.hosts["gpu0"].ahead = 90.0
    assert cluster.ddpctl("clean", cluster.hosts_file, "-y")[0] == 0
    assert cluster.tickets == []


def test_any_hosts_whose_gpus_are_free_are_taken(make: Make) -> None:
    cluster = make("gpu0", "gpu1", "gpu2")
    cluster.launch("--detach", "--include", "gpu0")
    code, run_id, err = cluster.launch("--detach", "--nodes", "2")
    assert code == 0 and "the run uses gpu[1-2]" in err
    found = {n.node_rank: n.host for n in cluster.nodes if n.run_id == run_id.strip()}
    assert found == {0: "gpu1", 1: "gpu2"}
    code, _, err = cluster.launch("--nodes", "1")
    assert code == 3 and "has GPUs 0-1" in err


def test_a_run_waits_for_any_host_that_becomes_free(make: Make) -> None:
    cluster = make("gpu0", "gpu1")
    for name in cluster.hosts:
        cluster.launch("--detach", "--include", name)
    [last] = [node for node in cluster.nodes if node.host == "gpu1"]
    cluster.nodes_end(0)
    once(lambda: len(cluster.tickets) == 2, lambda: last.end(0))
    code, _, err = cluster.launch("--wait", "--nodes", "1")
    assert code == 0, err
    assert "the run uses gpu1" in err and cluster.tickets == []


def test_ctrl_c_while_hosts_are_claimed_ends_a_wait_for_any_host(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make("gpu0", "gpu1")

    asked: list[PlannedAttempt] = []

    def refuse(planned: PlannedAttempt, *_: object) -> list[DdpctlError]:
        asked.append(planned)
        assert len(asked) == 1, "it waits and asks again"
        signal.raise_signal(signal.SIGINT)
        return [PreflightError("taken", "wait", host="gpu0")]

    monkeypatch.setattr(run_attempt_module, "settle_with_rivals", refuse)
    code, _, err = cluster.launch("--wait", "--nodes", "1")
    assert code == 130, err
    assert cluster.record["state"] == "CANCELLED"
    assert cluster.tickets == []


def test_ctrl_c_during_a_detached_start_is_not_swallowed_but_the_run_goes_on(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make("gpu0")

    def claim(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(run_attempt_module, "settle_with_rivals", claim)
    monkeypatch.setattr(run_attempt_module, "start_nodes", lambda *_: None)
    code, run_id, err = cluster.launch("--detach")
    assert code == 130 and "detached; to follow the run again, run `ddpctl attach" in err
    assert cluster.recorders == [run_id.strip()]
    assert cluster.record["state"] == "RUNNING"


def test_of_two_commands_that_wait_for_any_hosts_only_one_gets_the_attempt(make: Make) -> None:
    cluster = make("gpu0", "gpu1")
    cluster.launch("--detach")
    options = LaunchOptions(nodes=1, wait=0, detach=True)
    run_id, given = new_run_id("job"), load(cluster.hosts_file)
    first, second = (Request(given, options, run_id) for _ in range(2))
    assert run_attempt(first, Interrupts(), Console()).exit is Exit.DONE
    with pytest.raises(UsageError, match="attempt 1 was already started"):
        run_attempt(second, Interrupts(), Console())


@pytest.mark.parametrize("flags", [(), ("--detach",)])
def test_a_host_that_comes_back_while_the_run_waits_in_line_is_reserved_before_the_start(
    make: Make, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    cluster = make("gpu0", "gpu1")
    cluster.launch("--detach", "--include", "gpu1")
    running, back = list(cluster.nodes), cluster.hosts["gpu0"]
    back.reachable = False

    def come_back() -> None:
        back.reachable = True
        cluster.nodes_end(0)
        end_all(running)

    if not flags:
        once(lambda: cluster.tickets, come_back)
    code, _, err = cluster.launch("--wait", "--nodes", "1", "--name", "late", *flags)
    assert code == 0, err
    if flags:
        come_back()
        assert run_recorder(cluster, cluster.recorders[-1], monkeypatch) == 0
    [attempt] = back.home.glob(".ddpctl/runs/late-*/nodes/0/attempt-1")
    assert attempt.parents[2].joinpath("reserved/1").is_symlink()


@pytest.mark.parametrize("flags", [(), ("--detach",)])
def test_a_waiting_run_that_loses_its_attempt_to_another_command_is_recorded_as_failed(
    make: Make, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    cluster = make("gpu0", "gpu1")
    cluster.launch("--detach", "--include", "gpu1")
    running, gpu0, gpu1 = list(cluster.nodes), cluster.hosts["gpu0"], cluster.hosts["gpu1"]
    given = load(cluster.hosts_file)
    gpu0.reachable = False

    def late() -> str:
        [folder] = cluster.state.glob("ddpctl/runs/late-*")
        return folder.name

    def lose() -> None:
        gpu0.reachable, gpu1.reachable = True, False
        with connected(given.hosts) as connections:
            other = Request(given, LaunchOptions(), late())
            Reservation(other, connections).take(Console(quiet=True))
        gpu1.reachable = True
        end_all(running)

    if not flags:
        once(lambda: cluster.tickets, lose)
    code, _, err = cluster.launch("--wait", "--nodes", "1", "--name", "late", *flags)
    if flags:
        assert code == 0, err
        lose()
        code = run_recorder(cluster, late(), monkeypatch)
    assert code == 2, err
    assert record(cluster, late())["state"] == "FAILED"
    with connected(given.hosts) as connections:  # the other command may still start the attempt
        raise_if_cancelled(late(), 1, connections)


@pytest.mark.usefixtures("make")
def test_tickets_that_were_left_for_a_restart_stay_if_following_the_run_fails(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster("gpu0", gpus=2, master_port="auto", max_restarts=1)
    waiting = waits_behind_another(cluster)
    end_all(cluster.nodes)

    def fail(*_: object) -> Outcome:
        assert record(cluster, waiting)["state"] == "RUNNING" and cluster.tickets
        raise StateError("the disk is full")

    monkeypatch.setattr(run_attempt_module, "follow", fail)
    assert run_recorder(cluster, waiting, monkeypatch) == 1
    assert record(cluster, waiting)["state"] == "RUNNING" and cluster.tickets


def test_a_dry_run_shows_the_wait_and_that_hosts_are_chosen(make: Make) -> None:
    cluster = make("gpu0", "gpu1", "gpu2")
    code, out, _ = cluster.launch("--dry-run", "--nodes", "2", "--wait")
    assert code == 0 and "nodes         2, ranks" in out and "any hosts with free GPUs" in out
    assert "wait          as long as it takes" in out and " 1  gpu1" in out
    assert "wait          1h30m" in cluster.launch("--dry-run", "--wait-limit", "1h30m")[1]
    code, _, err = cluster.launch("--nodes", "4")
    assert code == 2 and "has 3 hosts" in err
    assert cluster.launch("--wait-limit", "0", "--dry-run")[0] == 2


def test_a_run_in_line_that_cannot_start_yet_keeps_its_place(make: Make) -> None:
    cluster = make("gpu0")
    cluster.launch("--detach")
    given = load(cluster.hosts_file)
    with connected(given.hosts) as connections:
        inputs = PlanInputs(gather(connections), ("i",))
        plan = Request(given, LaunchOptions(), "later", since=9e9).plan(inputs)
        planned = PlannedAttempt(plan, connections)
        [member] = planned.handle.members
        member.engine.create_ticket("ticket", plan.nodes[0].container.labels)
        assert claim(planned)
    assert cluster.tickets == ["ticket"] and len(cluster.nodes) == 1


def test_a_later_rival_that_neither_starts_nor_gives_up_comes_first_in_the_end(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make("gpu0")
    undecided = cluster.launch("--detach")[1].strip()
    cluster.nodes[0].state = "created"
    given = load(cluster.hosts_file)
    monkeypatch.setattr(settle_module, "LEASE", 0.0)
    with connected(given.hosts) as connections:
        inputs = PlanInputs(gather(connections), ("i",))
        plan = Request(given, LaunchOptions(), "earlier", since=1.0).plan(inputs)
        planned = PlannedAttempt(plan, connections)
        free, reasons = free_hosts(planned, list_claims(planned))
        assert not free and undecided in str(reasons[0])
        reasons = claim(planned)
    assert reasons and undecided in str(reasons[0])
    assert {node.run_id for node in cluster.nodes} == {undecided}


def test_no_claim_grows_old_while_another_hosts_folders_are_filled(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another launch removes a node that has not started within LEASE."""
    cluster = make("gpu0", "gpu1")
    created = threading.Event()

    def fill(connection: HostConnection, *files: Any) -> None:
        if connection.name == "gpu1":
            assert not created.wait(0.5)
        fill_folders(connection, *files)

    def create(docker: FakeDocker, **arguments: Any) -> dict[str, str]:
        created.set()
        return create_container(docker, **arguments)

    create_container = FakeDocker.create_container
    monkeypatch.setattr(FakeDocker, "create_container", create)
    monkeypatch.setattr(start_nodes_module, "fill_folders", fill)
    code, _, err = cluster.launch("--detach")
    assert code == 0 and created.is_set(), err


def test_ctrl_c_ends_a_launch_that_looks_at_an_undecided_rival(
    make: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = make("gpu0")
    undecided = cluster.launch("--detach", "--name", "rival")[1].strip()
    cluster.nodes[0].state = "created"

    looks = []

    def sleep(interrupts: Interrupts, seconds: float) -> None:
        looks.append(seconds)
        signal.raise_signal(signal.SIGINT)
        real_sleep(interrupts, 0)

    real_sleep = Interrupts.sleep
    monkeypatch.setattr(Interrupts, "sleep", sleep)
    monkeypatch.setattr(settle_module, "LEASE", 1.0)
    options, run_id = LaunchOptions(check=False), new_run_id("own")
    request = Request(load(cluster.hosts_file), options, run_id, since=1.0)
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts:
        run_attempt(request, interrupts, Console(verbose=True))
    assert len(looks) == 1
    created, asks, _ = capsys.readouterr().err.partition("asking about other runs ...")
    assert "creating 1 node: " in created and asks
    assert {node.run_id for node in cluster.nodes} == {undecided}


def test_a_run_that_loses_its_turn_keeps_its_place_and_its_time_of_request(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make("gpu0")
    cluster.nodes_end(0)
    listed: list[list[str]] = []
    asked_at: set[float | None] = set()

    def beaten_twice(planned: PlannedAttempt, *more: Any) -> list[DdpctlError]:
        listed.append(list(cluster.tickets))
        asked_at.add(planned.plan.since)
        if len(listed) < 3:
            return [PreflightError("another run was faster", host="gpu0")]
        return settle_with_rivals(planned, *more)

    monkeypatch.setattr(run_attempt_module, "settle_with_rivals", beaten_twice)
    monkeypatch.setattr(run_attempt_module, "QUIET_BEFORE", 0.0)
    monkeypatch.setattr(run_attempt_module, "SHORTEST", 0.0)
    code, _, err = cluster.launch("--wait")
    assert code == 0, err
    [took] = [line for line in err.splitlines() if ": took " in line]
    assert took.count("creating 1 node") == took.count("asking 1 host ") == 1
    assert len(asked_at) == 1
    first, second, third = listed
    assert first == [] and len(second) == 1 and second == third
    assert cluster.tickets == []


def test_hosts_that_were_chosen_and_lost_keep_nothing_of_the_run(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make("gpu0", "gpu1")
    cluster.nodes_end(0)
    chosen: list[list[str]] = []

    def choose(*arguments: Any) -> Any:
        cluster.hosts["gpu0"].reachable = not chosen  # the second time, gpu0 does not answer
        connections = choose_hosts(*arguments)
        chosen.append([connection.name for connection in connections])
        return connections

    def lose_first(planned: PlannedAttempt, *_: object) -> list[PreflightError]:
        return (
            [PreflightError("another run was faster", host="gpu0")]
            if planned.connections[0].name == "gpu0"
            else []
        )

    monkeypatch.setattr(run_attempt_module, "choose_hosts", choose)
    monkeypatch.setattr("launcher.start.run_attempt.settle_with_rivals", lose_first)
    code, _, err = cluster.launch("--nodes", "1", "--wait", "--name", "slow")
    assert code == 0, err
    assert chosen == [["gpu0"], ["gpu1"]]
    assert list(cluster.hosts["gpu0"].home.glob(".ddpctl/runs/slow-*/nodes/*/attempt-*")) == []
    assert list(cluster.hosts["gpu1"].home.glob(".ddpctl/runs/slow-*/nodes/0/attempt-1")) != []


@pytest.mark.parametrize("losses", [1, 2])
def test_a_run_that_is_killed_on_the_host_that_it_lost_ends_on_the_next_one(
    make: Make, monkeypatch: pytest.MonkeyPatch, losses: int
) -> None:
    """`kill` asks only the hosts in the record: those that the run chose last."""
    cluster = make("gpu0", "gpu1")
    cluster.nodes_end(0)
    chosen: list[HostConnection] = []

    def choose(_: Request, connections: Sequence[HostConnection], __: object) -> Any:
        if chosen:
            code, _, err = cluster.ddpctl("kill", "slow")
            assert code == 0 and "gpu1" not in err, err
        chosen.append(connections[len(chosen)])
        return chosen[-1:]

    def lose(*_: object) -> list[PreflightError]:
        lost = len(chosen) <= losses
        return [PreflightError("another run was faster", host=chosen[-1].name)] if lost else []

    monkeypatch.setattr(run_attempt_module, "choose_hosts", choose)
    monkeypatch.setattr(run_attempt_module, "settle_with_rivals", lose)
    code, _, err = cluster.launch("--nodes", "1", "--wait", "--name", "slow")
    assert code == Exit.CANCELLED and "was killed before it started" in err, err
    assert [connection.name for connection in chosen] == ["gpu0", "gpu1"]
    assert cluster.nodes == [] and cluster.record["state"] == "CANCELLED"
    assert list(cluster.hosts["gpu1"].home.glob(".ddpctl/runs/*/nodes/*/attempt-*")) == []


def test_a_launch_that_loses_its_chosen_host_for_good_runs_on_another(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make("gpu0", "gpu1")

    cluster.nodes_end(0)

    def beaten(planned: PlannedAttempt, *more: Any) -> list[DdpctlError]:
        if planned.connections[0].name == "gpu1":
            return settle_with_rivals(planned, *more)
        cluster.hosts["gpu0"].reachable = False
        return [PreflightError("another run was faster", host="gpu0")]

    monkeypatch.setattr(run_attempt_module, "settle_with_rivals", beaten)
    code, _, err = cluster.launch("--nodes", "1", "--wait")
    assert code == 0, err
    assert "the run uses gpu0" in err and "the run uses gpu1" in err and "waits" not in err


@pytest.mark.parametrize("removal_fails", [False, True])
def test_a_run_that_has_waited_runs_the_code_that_was_pushed_last(
    make: Make, monkeypatch: pytest.MonkeyPatch, removal_fails: bool
) -> None:
    cluster = make("gpu0")
    cluster.nodes_end(0)
    code = cluster.folder / "code"
    code.mkdir()
    (code / "train.py").write_text("old")
    (code / "gone.py").touch()
    home = cluster.hosts["gpu0"].home
    tries: list[list[str]] = []

    def lose_once(*_: object) -> list[PreflightError]:
        [workspace] = home.glob(".ddpctl/runs/*/workspace")
        tries.append([(workspace / "train.py").read_text(), *(p.name for p in workspace.iterdir())])
        if len(tries) > 1:
            return []
        (code / "train.py").write_text("new")
        (code / "gone.py").unlink()
        return [PreflightError("another run was faster", host="gpu0")]

    monkeypatch.setattr("launcher.start.run_attempt.settle_with_rivals", lose_once)
    if removal_fails:
        monkeypatch.setattr("launcher.start.start_nodes.REMOVE", "exit 1")
    flags = ("--no-check", "--wait", "--workdir", str(code))
    exit_code, _, err = cluster.ddpctl("launch", cluster.hosts_file, *flags)
    assert exit_code == 0, err
    first, second = tries
    assert first[0] == "old" and second[0] == "new"
    assert ("gone.py" in second) == removal_fails


@pytest.mark.usefixtures("make")
def test_a_try_of_a_later_attempt_keeps_what_the_run_has_written_to_its_workspace(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster("gpu0")
    cluster.nodes_end(1)
    (cluster.folder / "code").mkdir()
    (cluster.folder / "code" / "train.py").touch()
    flags = ("--no-check", "--wait", "--workdir", str(cluster.folder / "code"))
    assert cluster.ddpctl("launch", cluster.hosts_file, *flags)[0] == 1
    [workspace] = cluster.hosts["gpu0"].home.glob(".ddpctl/runs/*/workspace")
    (workspace / "written").touch()
    cluster.nodes_end(0)
    tries: list[bool] = []

    def lose_once(*_: object) -> list[PreflightError]:
        tries.append((workspace / "written").exists())
        return [PreflightError("another run was faster", host="gpu0")] if len(tries) == 1 else []

    monkeypatch.setattr("launcher.start.run_attempt.settle_with_rivals", lose_once)
    code, _, err = cluster.ddpctl("resume")
    assert code == 0, err
    assert tries == [True, True]


def test_any_host_will_do_though_the_first_is_silent(make: Make) -> None:
    cluster = make()
    cluster.hosts["gpu0"].reachable = False
    cluster.nodes_end(0)
    code, _, err = cluster.launch("--nodes", "1")
    assert code == 0, err
    assert [node.host for node in cluster.nodes] == ["gpu1"]


def test_the_json_of_a_detached_launch_shows_running_nodes(
    fake_cluster: Callable[..., FakeCluster],
) -> None:
    code, out, err = fake_cluster().launch("--detach", "--json")
    assert code == 0, err
    [attempt] = json.loads(out)["attempts"]
    states = {attempt["state"], *(node["state"] for node in attempt["nodes"])}
    assert states == {"RUNNING"}
