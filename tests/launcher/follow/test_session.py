"""Following on fake hosts: signals, lost hosts, and what attach returns."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable

import pytest
from fakes import FakeCluster, FakeDocker, FakeNode, signal_once_started
from supervisors import until

from launcher.errors import StateError
from launcher.follow import node_watcher, session
from launcher.follow.ctrl_c import LEAVING
from launcher.logs.store import LogStore
from launcher.own_folders import locked
from launcher.runs import sync_logs
from launcher.runs.run_folder import run_folder
from launcher.ssh.host_connection import HostConnection
from launcher.start.tickets import Tickets
from launcher.stop.inventory import RunProcess
from launcher.terminal.console import Console

Make = Callable[..., FakeCluster]


def test_ctrl_c_stops_every_node_and_exits_with_130(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    signal_once_started(cluster, signal.SIGINT)
    code, _, err = cluster.launch()
    assert code == 130, err
    assert all(node.ended.is_set() for node in cluster.nodes)
    assert cluster.record["state"] == "CANCELLED"


def test_ctrl_c_does_not_wait_for_a_command_that_holds_the_log(fake_cluster: Make) -> None:
    cluster = fake_cluster("gpu0")
    cluster.nodes_end(1)
    assert cluster.launch()[0] == 1
    logs = run_folder(cluster.record["run_id"]).logs
    store = LogStore.acquire(logs, pytest.fail)  # as in `ddpctl logs | less`
    assert store
    signal_once_started(cluster, signal.SIGINT)
    began = time.monotonic()
    code, _, err = cluster.ddpctl("resume")
    store.close()
    assert code == 130, err
    assert time.monotonic() - began < sync_logs.PATIENCE


def test_a_node_that_ctrl_c_stopped_is_reported_as_cancelled(fake_cluster: Make) -> None:
    cluster = fake_cluster("gpu0")
    signal_once_started(cluster, signal.SIGINT)
    events = cluster.folder / "events"
    note = f'echo "$DDPCTL_EVENT $DDPCTL_MESSAGE $DDPCTL_EXIT_CODE" >> {events}'
    assert cluster.launch("--on-event", note)[0] == 130
    assert "node-ended CANCELLED 143" in events.read_text().splitlines()
    assert [node["state"] for node in cluster.record["attempts"][0]["nodes"]] == ["CANCELLED"]


def test_ctrl_backslash_leaves_the_run_to_a_recorder_and_exits_with_0(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    signal_once_started(cluster, signal.SIGQUIT)
    code, _, err = cluster.launch()
    assert code == 0, err
    assert not any(node.ended.is_set() for node in cluster.nodes)
    assert cluster.recorders == [cluster.record["run_id"]]
    assert f"`ddpctl attach {cluster.record['run_id']}`" in err


@pytest.mark.parametrize("number", LEAVING)
def test_a_stop_that_has_begun_goes_on_when_the_terminal_closes(
    fake_cluster: Make, number: int
) -> None:
    cluster = fake_cluster()
    signal_once_started(cluster, signal.SIGINT)

    def stop_late(node: FakeNode) -> None:
        os.kill(os.getpid(), number)
        time.sleep(0.6)  # several ticks, one of which takes the signal
        node.stop()

    cluster.hosts["gpu0"].on_stop = stop_late
    code, _, err = cluster.launch()
    assert code == 130, err
    assert "the run continues" not in err
    assert cluster.record["state"] == "CANCELLED" and cluster.recorders == []


@pytest.mark.parametrize(("exit_code", "command"), [(0, "fetch"), (1, "resume")])
def test_the_last_line_has_the_duration_and_the_next_command(
    fake_cluster: Make, exit_code: int, command: str
) -> None:
    cluster = fake_cluster()
    cluster.nodes_end(exit_code)
    for argv in ([], ["attach"]):
        _, _, err = cluster.ddpctl(*argv) if argv else cluster.launch()
        hint = f"`ddpctl {command} {cluster.record['run_id']}`"
        assert re.search(rf"\nddpctl: ran for \d+s; {hint} [^\n]+\n$", err), err


def test_only_one_command_reports_that_a_node_was_cancelled(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    events = cluster.folder / "events"
    events.touch()
    note = f'[ "$DDPCTL_EVENT" != node-ended ] || echo "$DDPCTL_NODE_RANK" >> {events}'

    def leave_once_reported() -> None:
        until(lambda: bool(events.read_text()), 5)
        os.kill(os.getpid(), signal.SIGQUIT)

    first, second = cluster.hosts.values()
    first.on_start = FakeNode.kill
    second.on_start = lambda _: threading.Thread(target=leave_once_reported).start()
    assert cluster.launch("--on-event", note)[0] == 0
    for node in cluster.nodes:
        node.end(0)
    cluster.ddpctl("attach", "--on-event", note)
    assert events.read_text() == "0\n1\n"


@pytest.mark.parametrize("recorder", ["before", "later", "none"])
def test_ctrl_c_of_attach_starts_a_recorder_only_if_the_run_has_none(
    fake_cluster: Make, recorder: str
) -> None:
    """later: as beside a `launch --detach` that has started the nodes and not yet its recorder."""
    cluster = fake_cluster("gpu0")
    run_id = cluster.launch("--detach")[1].strip()
    cluster.recorders.clear()

    with contextlib.ExitStack() as recording:

        def start_recorder() -> None:
            recording.enter_context(locked(run_folder(run_id).attempt_lock(1)))

        def press_ctrl_c() -> None:
            until(lambda: cluster.hosts["gpu0"].count("wait") > 0, 20)  # attach follows the node
            if recorder == "later":
                start_recorder()
            os.kill(os.getpid(), signal.SIGINT)

        if recorder == "before":
            start_recorder()
        threading.Thread(target=press_ctrl_c).start()
        code, _, err = cluster.ddpctl("attach")
    assert code == 130 and f"follow it with `ddpctl attach {run_id}`" in err, err
    assert cluster.recorders == ([run_id] if recorder == "none" else [])


def test_attach_beside_a_launch_that_has_just_started_the_run_leaves_the_run_to_it(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster("gpu0")
    codes = []
    remove_all = Tickets.remove_all

    def press_ctrl_c() -> None:
        until(lambda: cluster.hosts["gpu0"].count("wait") > 0, 20)  # attach follows the node
        os.kill(os.getpid(), signal.SIGINT)

    def attach_now(tickets: Tickets) -> None:
        threading.Thread(target=press_ctrl_c).start()
        codes.append(cluster.ddpctl("attach")[0])
        cluster.nodes[0].end(0)
        remove_all(tickets)

    monkeypatch.setattr(Tickets, "remove_all", attach_now)
    codes.append(cluster.launch()[0])
    assert (codes, cluster.recorders) == ([130, 0], [])


def test_a_launch_without_the_log_leaves_the_run_to_a_recorder_all_the_same(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while `attach`, which does not restart the run, records the lines."""
    cluster = fake_cluster("gpu0")
    cluster.nodes_end(1)
    assert cluster.launch()[0] == 1
    run_id = cluster.record["run_id"]
    store = LogStore.acquire(run_folder(run_id).logs, pytest.fail)
    assert store
    monkeypatch.setattr(sync_logs, "PATIENCE", 0.0)
    signal_once_started(cluster, signal.SIGQUIT)
    code, _, err = cluster.ddpctl("resume")
    store.close()
    assert (code, cluster.recorders) == (0, [run_id]), err


def test_attach_follows_a_run_also_on_a_file_system_without_locks(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    cluster = fake_cluster("gpu0")
    folder = run_folder(cluster.launch("--detach")[1].strip())
    folder.attempt_lock(1).touch()  # by a recorder that could not start
    monkeypatch.setattr(fcntl, "flock", unsupported)
    cluster.nodes[0].say("loss 0.1", 0)
    cluster.nodes[0].end(1)
    code, out, err = cluster.ddpctl("attach")
    assert code == 1 and "loss 0.1" in out, err


def test_a_command_that_learns_of_the_end_late_does_not_hide_a_newer_attempt(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster("gpu0")
    assert cluster.launch("--detach")[0] == 0
    cluster.nodes[0].end(1)

    def resume_meanwhile(*_: object) -> None:
        """As while `attach` is suspended with Ctrl-Z."""
        assert cluster.ddpctl("resume", "--detach")[0] == 0

    monkeypatch.setattr("launcher.follow.session.explain", resume_meanwhile)
    assert cluster.ddpctl("attach")[0] == 1
    assert [each["attempt"] for each in cluster.record["attempts"]] == [1, 2]
    assert cluster.record["state"] == "RUNNING"


def test_a_command_that_sees_the_end_of_one_node_does_not_undo_the_end_that_kill_has_recorded(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster("gpu0", "gpu1")
    assert cluster.launch("--detach")[0] == 0
    [path] = cluster.state.glob("ddpctl/runs/*/run.json")
    real_save, states = session.Session._save, []

    def save(own: session.Session) -> None:
        if not states:  # as by `kill`
            document = json.loads(path.read_text())
            document["state"] = document["attempts"][-1]["state"] = "CANCELLED"
            path.write_text(json.dumps(document))
        real_save(own)
        states.append(cluster.record["state"])
        cluster.nodes[1].end(143)

    monkeypatch.setattr(session.Session, "_save", save)
    cluster.nodes[0].end(1)
    cluster.ddpctl("attach")
    assert states[0] == "CANCELLED" and len(states) > 1


def test_ctrl_c_with_a_host_out_of_reach_says_that_its_stop_is_not_confirmed(
    fake_cluster: Make,
) -> None:
    cluster = fake_cluster()
    signal_once_started(cluster, signal.SIGINT)
    released = cluster.hosts["gpu1"].on_start

    def lose(node: object) -> None:
        cluster.hosts["gpu1"].reachable = False
        released(node)  # type: ignore[arg-type]

    cluster.hosts["gpu1"].on_start = lose
    code, _, err = cluster.launch()
    assert code == 6, err
    assert "gpu1" in err
    assert cluster.record["state"] == "UNKNOWN"
    assert cluster.record["pending_stop"] == ["gpu1"]


@pytest.fixture
def lasting_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """On gpu1, a process of each run stays, such as a rank in state D."""

    def processes_on(connection: HostConnection, run_id: str) -> list[RunProcess]:
        return [RunProcess(41, run_id, "python")] if connection.name == "gpu1" else []

    monkeypatch.setattr("launcher.stop.stop_on_host.PROCESS_TIMEOUT", 0.0)
    monkeypatch.setattr("launcher.stop.stop_on_host.processes_on", processes_on)


@pytest.mark.usefixtures("lasting_process")
def test_ctrl_c_with_a_process_left_says_that_its_stop_is_not_confirmed(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    signal_once_started(cluster, signal.SIGINT)
    code, _, err = cluster.launch()
    assert code == 6 and "gpu1: stop not confirmed: STILL THERE: pid 41; " in err, err
    assert (cluster.record["state"], cluster.record["pending_stop"]) == ("UNKNOWN", ["gpu1"])


@pytest.mark.usefixtures("lasting_process")
def test_a_process_that_is_left_after_a_failure_is_still_to_be_stopped(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "PEER_STOP_TIMEOUT", 0.1)
    cluster = fake_cluster()
    cluster.hosts["gpu0"].on_start = lambda node: node.end(1)
    code, _, err = cluster.launch()
    assert code == 1 and "gpu1: stop not confirmed: STILL THERE: pid 41; " in err, err
    assert (cluster.record["state"], cluster.record["pending_stop"]) == ("FAILED", ["gpu1"])


def test_ctrl_c_does_not_wait_for_a_node_that_does_not_stop(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    cluster.hosts["gpu1"].ignores_stop = True
    signal_once_started(cluster, signal.SIGINT)
    code, _, err = cluster.launch()
    name = f"ddpctl-{cluster.record['run_id']}-1"
    assert code == 6 and f"gpu1: stop not confirmed: STILL THERE: {name}; " in err, err
    assert cluster.record["pending_stop"] == ["gpu1"]


def test_the_record_has_the_end_of_a_node_while_others_run(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    seen: list[str] = []

    def outlive(node: FakeNode) -> None:
        def saved() -> bool:
            seen[:] = [each["state"] for each in cluster.record["attempts"][-1]["nodes"]]
            return seen[0] == "SUCCEEDED"

        with contextlib.suppress(AssertionError):
            until(saved, 5)
        node.end(0)

    first, second = cluster.hosts.values()
    first.on_start = lambda node: node.end(0)
    second.on_start = lambda node: threading.Thread(target=outlive, args=[node]).start()
    assert cluster.launch()[0] == 0
    assert seen[0] == "SUCCEEDED" != seen[1]


def test_attach_returns_the_exit_code_of_a_run_that_has_ended(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    cluster.nodes_end(exit_code=0)
    assert cluster.launch()[0] == 0
    code, _, err = cluster.ddpctl("attach")
    assert code == 0, err


TRACEBACK = ["Traceback (most recent call last):", '  File "torchrun", line 8, in <module>']
ELASTIC = "torch.distributed.elastic.multiprocessing"
BOX = ["=======", "train.py FAILED", "======="]
REPORTS = [  # of the node where a rank fails, and of the node that is then stopped
    [*TRACEBACK, f"{ELASTIC}.errors.ChildFailedError: ", *BOX],
    [*TRACEBACK, f"{ELASTIC}.api.SignalException: Process 7 got signal: 15"],
]


@pytest.mark.parametrize(
    ("terminal", "flags", "hidden"),
    [(True, [], True), (True, ["--verbose"], False), (False, [], False)],
)
def test_torchruns_own_reports_are_hidden_on_a_terminal_only(
    fake_cluster: Make,
    monkeypatch: pytest.MonkeyPatch,
    terminal: bool,
    flags: list[str],
    hidden: bool,
) -> None:
    monkeypatch.setattr(Console, "on_terminal", terminal)
    cluster = fake_cluster()

    def fail(node: FakeNode) -> None:
        for line in REPORTS[node.node_rank]:
            node.say(line)
        node.say("ValueError: boom", 0)
        node.end(1)

    for host in cluster:
        host.on_start = fail
    _, out, err = cluster.launch(*flags)
    note = "torchrun's own report from 2 nodes is hidden"
    assert out.count("boom") == 2
    assert (out.count(TRACEBACK[1]), note in err) == (0 if hidden else 2, hidden)
    assert cluster.ddpctl("logs")[1].count(TRACEBACK[1]) == 2
    _, out, err = cluster.ddpctl("attach", *flags)  # which shows what was recorded
    assert (out.count(TRACEBACK[1]), note in err) == (0 if hidden else 2, hidden)


@pytest.mark.parametrize(
    ("flags", "lines", "error"),
    [
        (["--rank", "0-1"], 2, ""),
        (["--rank", "0,1", "--node", "1"], 1, ""),
        (["--host", "gpu1"], 1, ""),
        (["--attempt", "1"], 2, ""),
        (["--rank", "7"], 0, "--rank 7: 7 is not a number or range within 0-1"),
        (["--node", "2"], 0, "--node 2: 2 is not a number or range within 0-1"),
        (["--host", "gpu7"], 0, "--host gpu7: the run is on gpu[0-1]"),
        (["--attempt", "3"], 0, "--attempt 3: the run's last attempt is 1"),
    ],
)
def test_logs_takes_lists_and_ranges_and_refuses_what_does_not_exist(
    fake_cluster: Make, flags: list[str], lines: int, error: str
) -> None:
    cluster = fake_cluster(nproc_per_node=1)

    def work(node: FakeNode) -> None:
        node.say("a line", node.node_rank)
        node.end(0)

    for host in cluster:
        host.on_start = work
    assert cluster.launch()[0] == 0
    code, out, err = cluster.ddpctl("logs", *flags)
    assert (code, len(out.splitlines())) == (2 if error else 0, lines), err
    assert error in err


@pytest.mark.parametrize("flags", [("--host", "gpu1"), ("--node", "1"), ("--rank", "1")])
def test_what_only_another_attempt_has_does_not_exist(
    fake_cluster: Make, flags: tuple[str, str]
) -> None:
    cluster = fake_cluster(nproc_per_node=1)
    cluster.nodes_end(exit_code=1)
    assert cluster.launch()[0] == 1
    assert cluster.ddpctl("resume", "--exclude", "gpu1")[0] == 1
    codes = [cluster.ddpctl("logs", "--attempt", number, *flags)[0] for number in "12"]
    assert [*codes, cluster.ddpctl("logs", *flags)[0]] == [0, 2, 0]


def test_logs_looks_up_the_number_of_an_attempt(fake_cluster: Make) -> None:
    cluster = fake_cluster("gpu0")
    cluster.nodes_end(exit_code=0)
    assert cluster.launch()[0] == 0
    [path] = cluster.state.rglob("run.json")
    record = cluster.record
    record["attempts"].append({**record["attempts"][0], "attempt": 3})  # 2 is missing
    path.write_text(json.dumps(record))
    codes = [cluster.ddpctl("logs", "--attempt", number)[0] for number in "1234"]
    assert codes == [0, 2, 0, 2]


@pytest.mark.parametrize("command", ["logs", "attach"])
def test_stderr_says_where_each_attempt_begins(fake_cluster: Make, command: str) -> None:
    cluster = fake_cluster("gpu0")

    def work(node: FakeNode) -> None:
        node.say(f"this is attempt {node.attempt}", 0)
        node.end(1 if node.attempt == 1 else 0)

    cluster.hosts["gpu0"].on_start = work
    assert cluster.launch()[0] == 1
    assert cluster.ddpctl(command)[2].count("attempt 1:") == 0
    assert cluster.ddpctl("resume")[0] == 0
    _, out, err = cluster.ddpctl(command)
    assert out == "[gpu0:0] this is attempt 1\n[gpu0:0] this is attempt 2\n"
    assert "ddpctl: attempt 1:\nddpctl: attempt 2:\n" in err


def test_hosts_that_are_lost_or_back_at_once_are_one_line(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster(*(f"gpu{number}" for number in range(5)))
    cluster.launch("--detach")
    monkeypatch.setattr(node_watcher, "BACKOFF", (0.3,))
    say, said = Console.say, []

    def note(console: Console, text: str) -> None:
        said.append(text)
        for host in cluster:
            host.reachable = host.reachable or text.startswith("lost contact")
        if "contact restored" in text:
            for node in cluster.nodes:
                node.end(0)
        say(console, text)

    monkeypatch.setattr(Console, "say", note)
    for host in cluster:
        host.reachable = False
    folder = cluster.folder
    code, _, err = cluster.ddpctl(
        "attach", "--on-event", f"echo $DDPCTL_MESSAGE >> {folder}/events"
    )
    assert code == 0, err
    assert [text for text in said if "lost contact" in text] == [
        "lost contact with gpu[0-4]: no answer within 10s; the run "
        "continues, and ddpctl keeps trying to reach it"
    ]
    events = (folder / "events").read_text().splitlines()
    restored = sorted(event for event in events if "restored" in event)
    assert restored == [f"gpu{number}: contact restored" for number in range(5)]


def test_contact_is_restored_once_an_engine_that_was_restarted_answers(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a Docker daemon with live-restore, which leaves the containers running meanwhile."""
    monkeypatch.setattr(node_watcher, "BACKOFF", (0.1,))
    cluster = fake_cluster("gpu0")
    host, said = cluster.hosts["gpu0"], []

    def note(console: Console, text: str) -> None:
        said.append(text)
        if text.startswith("lost contact"):
            del host.refuses["wait"], host.refuses["containers"]
        if "contact restored" in text:
            host.nodes[f"ddpctl-{cluster.record['run_id']}-0"].end(0)

    def restart_engine(node: FakeNode) -> None:
        host.refuses |= dict.fromkeys(("wait", "containers"), "the daemon is not running")
        late = threading.Timer(10.0, node.end, [0])  # instead of a test that hangs
        late.daemon = True
        late.start()

    monkeypatch.setattr(Console, "say", note)
    host.on_start = restart_engine
    assert cluster.launch()[0] == 0
    assert "gpu0: contact restored" in said


def test_a_node_has_not_ended_because_its_engine_ends_the_wait_early(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a Docker daemon that shuts down may, with live-restore."""
    monkeypatch.setattr(node_watcher, "BACKOFF", (0.1,))
    cluster = fake_cluster("gpu0")
    wait, waits = FakeDocker.wait, []

    def wait_early(engine: FakeDocker, name: str, timeout: float | None = None) -> None:
        waits.append(name)
        if len(waits) == 2:
            cluster.nodes[0].say("still here", 0)
            cluster.nodes[0].end(0)
        if len(waits) > 1:
            wait(engine, name, timeout)

    monkeypatch.setattr(FakeDocker, "wait", wait_early)
    code, out, err = cluster.launch()
    assert (code, out) == (0, "[gpu0:0] still here\n"), err


@pytest.mark.parametrize("error", [StateError("the disk is full"), RuntimeError("boom")])
def test_an_error_that_ends_the_command_but_not_the_run_says_how_to_follow_the_run_again(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(_: session.Session) -> None:
        raise error

    cluster = fake_cluster("gpu0")
    monkeypatch.setattr(session.Session, "to_the_end", fails)
    code, _, err = cluster.launch()
    assert (code != 0 and str(error) in err) or "internal error" in err
    run_id = cluster.record["run_id"]
    assert f"the run continues; follow it with `ddpctl attach {run_id}`" in err
