"""Killing on fake hosts: what was not seen to stop is remembered and finished later."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import FakeCluster, FakeDocker, FakeNode, messages

from launcher.engines.base import NodeListing
from launcher.engines.docker import Docker
from launcher.engines.status import NodeStatus
from launcher.errors import CommandTimeout, HostUnreachable, PreflightError
from launcher.hosts import Host
from launcher.own_folders import state_home
from launcher.runs.attempt_lock import locks_released_at_end, take_care
from launcher.runs.run_folder import run_folder
from launcher.ssh.host_connection import HostConnection
from launcher.start import run_attempt
from launcher.stop import choose_runs, inventory, kill, stop_on_host, strays
from launcher.stop.choose_runs import HostedRun
from launcher.stop.stop_on_host import HostResult
from launcher.stop.stopped_run import StoppedRun

Make = Callable[..., FakeCluster]


def running(cluster: FakeCluster) -> str:
    code, out, err = cluster.launch("--detach")
    assert code == 0, err
    return out.strip()


def test_kill_stops_and_removes_every_node(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    run_id = running(cluster)
    code, _, err = cluster.ddpctl("kill", run_id)
    assert code == 0, err
    assert cluster.nodes == []
    assert cluster.record["state"] == "CANCELLED"


def test_an_unconfirmed_stop_is_remembered_and_finished_at_the_next_contact(
    fake_cluster: Make,
) -> None:
    cluster = fake_cluster("gpu0", "gpu1", "gpu2")
    run_id = running(cluster)
    cluster.hosts["gpu1"].reachable = False
    code, _, err = cluster.ddpctl("kill", run_id)
    assert code == 6
    assert "gpu1" in err
    assert [node.host for node in cluster.nodes] == ["gpu1"]  # the others were stopped all the same
    assert cluster.record["pending_stop"] == ["gpu1"]
    code, _, err = cluster.ddpctl("ps", cluster.hosts_file)
    assert (code, err.count("gpu1")) == (4, 1), err  # as without a pending stop

    cluster.hosts["gpu1"].reachable = True
    code, _, err = cluster.ddpctl("ps", cluster.hosts_file)
    assert code == 0, err
    assert cluster.nodes == []
    assert cluster.record["state"] == "CANCELLED"
    assert cluster.record["pending_stop"] == []


def test_a_host_that_cannot_write_the_mark_has_its_node_stopped_all_the_same(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster()
    run_id = running(cluster)
    full = 'echo "No space left on device" >&2; exit 1'
    script = f'[ "$(uname -n)" != gpu1 ] || {{ {full}; }}\n{stop_on_host.MARK_CANCELLED}'
    monkeypatch.setattr(stop_on_host, "MARK_CANCELLED", script)
    code, _, err = cluster.ddpctl("kill", run_id)
    assert code == 6 and f"gpu1: stop not confirmed: could not mark {run_id}" in err, err
    assert "No space left on device" in err
    assert cluster.nodes == []
    assert cluster.record["pending_stop"] == ["gpu1"]


@pytest.mark.parametrize("fault", ["exit 2", "kill -9 $$", "exit 0", "echo nonsense; exit 0"])
@pytest.mark.parametrize("flags", [[], ["--strays"]])
def test_a_host_that_fails_to_list_its_processes_is_not_confirmed(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch, fault: str, flags: list[str]
) -> None:
    cluster = fake_cluster()
    run_id = running(cluster)
    script = f'[ "$(uname -n)" != gpu1 ] || {{ {fault}; }}\n{inventory.INVENTORY}'
    monkeypatch.setattr(inventory, "INVENTORY", script)
    code, out, err = cluster.ddpctl("kill", flags[0] if flags else run_id, "--json", *flags[1:])
    assert code == 6 and "gpu1" in err, err
    document = json.loads(out)
    unseen = document["unseen"] if flags else document["runs"][0]["unseen"]
    assert [each["host"] for each in unseen] == ["gpu1"]
    assert cluster.record["pending_stop"] == ([] if flags else ["gpu1"])


def test_a_pending_stop_uses_the_runs_own_engine_whatever_the_hosts_file_says(
    fake_cluster: Make,
) -> None:
    cluster = fake_cluster()
    run_id = running(cluster)
    cluster.hosts["gpu1"].reachable = False
    assert cluster.ddpctl("kill", run_id)[0] == 6
    cluster.hosts["gpu1"].reachable = True
    document = json.loads(Path(cluster.hosts_file).read_text())
    document["job"] = {**document["job"], "engine": "process"}
    Path(cluster.hosts_file).write_text(json.dumps(document))
    cluster.ddpctl("ps", cluster.hosts_file)
    assert cluster.nodes == []
    assert cluster.record["pending_stop"] == []


def test_a_pending_stop_does_not_cancel_a_run_that_was_resumed_on_other_hosts(
    fake_cluster: Make,
) -> None:
    cluster = fake_cluster()
    running(cluster)
    [file] = cluster.state.glob("ddpctl/runs/*/run.json")
    file.write_text(json.dumps({**cluster.record, "pending_stop": ["gpu1"]}))
    code, _, err = cluster.ddpctl("ps", cluster.hosts_file)
    assert code == 0, err
    assert [node.host for node in cluster.nodes] == ["gpu0"]
    assert cluster.record["state"] == "RUNNING"
    assert cluster.record["pending_stop"] == []


def test_a_kill_is_not_confirmed_while_a_host_that_the_run_lost_has_not_confirmed_its_stop(
    fake_cluster: Make,
) -> None:
    cluster = fake_cluster("gpu0", "gpu1", "gpu9")
    _, out, err = cluster.ddpctl(
        "launch", "-H", "gpu0:0,gpu1:0", "--no-push", "--no-check", "--detach", "--", "a.py"
    )
    run_id = out.strip()
    [file] = cluster.state.glob("ddpctl/runs/*/run.json")
    file.write_text(json.dumps({**cluster.record, "pending_stop": ["gpu9"]}))
    code, out, err = cluster.ddpctl("kill", run_id, "--json")
    assert code == 6 and "gpu9: stop not confirmed" in err, err
    assert f"run {run_id}: stopped, nothing left on gpu[0-1]" in err
    [run] = json.loads(out)["runs"]
    assert (run["confirmed"], [each["host"] for each in run["unseen"]]) == (False, ["gpu9"])
    assert (cluster.record["state"], cluster.record["pending_stop"]) == ("CANCELLED", ["gpu9"])

    assert cluster.ddpctl("ps", cluster.hosts_file)[0] == 0  # reaches gpu9
    assert cluster.record["pending_stop"] == []
    assert cluster.ddpctl("kill", run_id)[0] == 0


def test_a_host_that_never_returns_can_be_forgotten(fake_cluster: Make) -> None:
    cluster = fake_cluster("gpu0", "gpu9")
    run_id = running(cluster)
    cluster.hosts["gpu9"].reachable = False
    assert cluster.ddpctl("kill", run_id)[0] == 6
    others = ("kill", run_id, "--hosts", "gpu0,")
    code, _, err = cluster.ddpctl(*others)
    [file] = cluster.state.glob("ddpctl/runs/*/run.json")
    forget = f"--hosts; if that host is gone for good, remove it from pending_stop in {file};"
    assert code == 6 and f"to ask it, pass your hosts file with {forget}" in err
    file.write_text(json.dumps({**cluster.record, "pending_stop": []}))
    assert cluster.ddpctl(*others)[0] == 0


def kill_that_gpu1_ignores(cluster: FakeCluster, flag: str) -> tuple[str, str]:
    """Return what `kill` prints to stdout and stderr if the node on gpu1 does not stop."""
    run_id = running(cluster)
    cluster.hosts["gpu1"].ignores_stop = True
    code, out, err = cluster.ddpctl("kill", run_id, flag)
    assert code == 6
    return out, err


def test_a_container_that_does_not_stop_is_not_called_stopped(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    out, _ = kill_that_gpu1_ignores(cluster, "--json")
    [report] = json.loads(out)["runs"]
    assert report["confirmed"] is False
    assert cluster.record["pending_stop"] == ["gpu1"]


def test_a_quiet_kill_still_says_what_is_left(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    _, err = kill_that_gpu1_ignores(cluster, "-q")
    run_id = cluster.record["run_id"]
    [line] = messages(err)
    what = f"run {run_id}: gpu1: STILL THERE: ddpctl-{run_id}-1"
    assert line.startswith(f"ddpctl: error: {what}; end what is left there")
    assert line.endswith(f", then repeat `ddpctl kill {run_id}`")


def test_json_lists_what_is_left_by_container_name_and_pid() -> None:
    stopped = HostResult([], ["ddpctl-r-0"], [41])
    assert stopped.describe() == "STILL THERE: ddpctl-r-0, pid 41"
    connection = HostConnection(Host("gpu0"))
    run = HostedRun("r", [connection])
    [host] = StoppedRun(run, {connection: stopped}, {}).document()["hosts"]
    assert host["left"] == ["ddpctl-r-0", "41"]


def test_killing_a_run_that_is_followed_ends_the_launch_with_7(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    for host in cluster:
        host.on_start = FakeNode.kill
    code, _, err = cluster.launch()
    assert code == 7, err
    assert cluster.record["state"] == "CANCELLED"


def test_a_run_whose_supervisors_a_kill_ends_before_they_report_it_is_cancelled(
    fake_cluster: Make,
) -> None:
    def killed_at_once(node: FakeNode) -> None:
        node.journal.with_name("cancelled").touch()
        node.exit(143)

    cluster = fake_cluster()
    for host in cluster:
        host.on_start = killed_at_once
    code, _, err = cluster.launch()
    assert code == 7 and f"run {cluster.record['run_id']} cancelled" in err, err
    [attempt] = cluster.record["attempts"]
    assert (attempt["state"], attempt["first_failure"]) == ("CANCELLED", None)
    assert {node["state"] for node in attempt["nodes"]} == {"CANCELLED"}


def test_a_host_is_not_believed_about_a_kill_of_another_hosts_node(fake_cluster: Make) -> None:
    def lies(node: FakeNode) -> None:
        own = node.journal.parent
        other = own.parent.with_name("0") / own.name
        shutil.copytree(own, other)
        (other / "cancelled").touch()
        node.exit(143)

    cluster = fake_cluster()
    cluster.hosts["gpu0"].on_start = lambda node: node.exit(137)
    cluster.hosts["gpu1"].on_start = lies
    code, _, err = cluster.launch()
    assert code == 1 and "container was killed" in err, err
    assert cluster.record["state"] == "FAILED"
    assert "CANCELLED" not in {node["state"] for node in cluster.record["attempts"][0]["nodes"]}


def test_without_a_local_record_the_labels_decide(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    running(cluster)
    cluster.forget()
    code, _, err = cluster.ddpctl("kill", cluster.hosts_file)
    assert code == 0, err
    assert cluster.nodes == []


def test_without_a_local_record_nodes_get_the_time_to_save_that_the_hosts_file_says(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, stop, given = fake_cluster(stop_timeout=300), FakeDocker.stop, []
    running(cluster)
    cluster.forget()

    def note(self: FakeDocker, name: str, timeout: int) -> None:
        given.append(timeout)
        stop(self, name, timeout)

    monkeypatch.setattr(FakeDocker, "stop", note)
    code, _, err = cluster.ddpctl("kill", cluster.hosts_file)
    assert code == 0 and given == [300, 300], err


def test_an_account_of_a_domain_finds_its_own_runs(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = SimpleNamespace(pw_name="ann@corp.example")  # as sssd names accounts
    monkeypatch.setattr("launcher.ssh.local.pwd.getpwuid", lambda _: account)
    cluster = fake_cluster()
    running(cluster)
    cluster.forget()
    code, _, err = cluster.ddpctl("kill", cluster.hosts_file)
    assert (code, cluster.nodes) == (0, []), err


def test_no_file_of_a_run_on_a_host_can_hold_up_its_kill(fake_cluster: Make) -> None:
    cluster = fake_cluster("gpu0")
    attempt = cluster.hosts["gpu0"].home / ".ddpctl/runs/hostile/nodes/0/attempt-1"
    attempt.mkdir(parents=True)
    (attempt / "host").write_text("gpu0")
    os.mkfifo(attempt / "run.json")  # a reader waits until its time is up
    code, _, err = cluster.ddpctl("kill", "host", "--hosts", cluster.hosts_file)
    assert code == 0 and "run hostile: nothing to stop" in err


def test_a_host_that_cannot_say_how_its_nodes_ended_has_them_stopped_all_the_same(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(connection: HostConnection, _: str) -> None:
        raise CommandTimeout("no answer within 60s", host=connection.name)

    cluster = fake_cluster()
    run_id = running(cluster)
    cluster.nodes[0].end(1)
    monkeypatch.setattr(stop_on_host, "reports_of", fail)
    code, _, err = cluster.ddpctl("kill", run_id)
    assert (code, cluster.nodes) == (0, []), err


def test_kill_all_removes_the_containers_of_finished_runs_in_one_line(fake_cluster: Make) -> None:
    cluster = fake_cluster(master_port="auto")
    cluster.nodes_end(exit_code=0)
    for _ in range(3):
        assert cluster.launch()[0] == 0
    for host in cluster:
        host.on_start = lambda node: None
    run_id = running(cluster)
    code, _, err = cluster.ddpctl("kill", cluster.hosts_file, "--all", "-y")
    assert code == 0, err
    assert cluster.nodes == []
    assert len(err.splitlines()) == 2
    assert run_id in err and "3 finished runs" in err


def test_kill_all_is_not_confirmed_while_containers_of_finished_runs_may_be_left(
    fake_cluster: Make,
) -> None:
    cluster = fake_cluster()
    cluster.nodes_end(exit_code=0)
    assert cluster.launch()[0] == 0
    cluster.hosts["gpu1"].refuses = {"remove": "the disk is full"}
    code, out, err = cluster.ddpctl("kill", cluster.hosts_file, "--all", "-y", "--json")
    assert code == 6 and "gpu1: containers of finished runs may be left" in err, err
    [unseen] = json.loads(out)["unseen"]
    assert unseen["host"] == "gpu1" and "the disk is full" in unseen["error"]
    cluster.hosts["gpu1"].refuses = {}
    assert cluster.ddpctl("kill", cluster.hosts_file, "--all", "-y")[0] == 0
    assert cluster.nodes == []


def test_kill_all_removes_finished_containers_beside_a_host_that_does_not_answer(
    fake_cluster: Make,
) -> None:
    cluster = fake_cluster()
    cluster.nodes_end(exit_code=0)
    assert cluster.launch()[0] == 0
    cluster.hosts["gpu1"].reachable = False
    code, _, err = cluster.ddpctl("kill", cluster.hosts_file, "--all", "-y")
    assert code == 6 and "gpu1: other live runs may be left there" in err, err
    assert "you have no live run on gpu0\n" in err
    assert [node.host for node in cluster.nodes] == ["gpu1"]


def test_of_several_live_runs_on_the_hosts_none_is_killed_by_guess(fake_cluster: Make) -> None:
    cluster = fake_cluster(master_port="auto")
    first, second = running(cluster), running(cluster)
    cluster.forget()
    code, _, err = cluster.ddpctl("kill", cluster.hosts_file)
    assert code == 2 and first in err and second in err and "--all" in err
    assert len(cluster.nodes) == 4
    assert cluster.ddpctl("kill", cluster.hosts_file, "--all", "-y")[0] == 0
    assert cluster.nodes == []


def test_all_runs_are_not_stopped_if_a_host_answered_only_after_it_was_asked_for_them(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster()
    run_id = running(cluster)
    assert cluster.launch("--detach", "--include", "gpu1")[0] == 0
    ask = choose_runs.try_each

    def late(connections: Any, action: Any) -> tuple[Any, Any]:
        answers, _ = ask(connections, action)
        [gpu1] = [connection for connection in answers if connection.name == "gpu1"]
        return {c: answers[c] for c in answers if c != gpu1}, {gpu1: HostUnreachable("no answer")}

    monkeypatch.setattr(choose_runs, "try_each", late)
    slow = {"gpu1": CommandTimeout("containers of finished runs may be left")}
    monkeypatch.setattr(kill, "remove_finished", lambda *_: slow)
    code, out, err = cluster.ddpctl("kill", cluster.hosts_file, "--all", "-y", "--json")
    [left] = cluster.nodes
    assert left.run_id != run_id
    assert code == 6 and "gpu1: other live runs may be left there: no answer; repeat" in err
    [unseen] = json.loads(out)["unseen"]
    assert unseen["host"] == "gpu1" and "live runs" in unseen["error"]


@pytest.mark.parametrize("more", [[], ["-H", "gpu0,gpu1"], ["--strays"]])
def test_all_runs_cannot_be_one_run(fake_cluster: Make, more: list[str]) -> None:
    cluster = fake_cluster()
    run_id = running(cluster)
    code, _, err = cluster.ddpctl("kill", run_id, *more, "--all", "-y")
    [line] = messages(err)
    assert code == 2 and line.startswith("ddpctl: error: --all stops all your runs on the hosts")
    assert line.endswith(f"run `ddpctl kill {run_id}` or `ddpctl kill HOSTS --all`")
    assert len(cluster.nodes) == 2


def test_of_several_finished_runs_on_the_hosts_the_newest_is_removed(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster(master_port="auto")
    cluster.nodes_end(exit_code=0)
    earlier, later = "zz-20261120-100000-abcd", "aa-20261121-100000-abcd"
    for run_id in (earlier, later):
        monkeypatch.setattr("launcher.start.launch.new_run_id", lambda _, own=run_id: own)
        assert cluster.launch()[0] == 0
    code, _, err = cluster.ddpctl("kill", cluster.hosts_file)
    assert (code, {node.run_id for node in cluster.nodes}) == (0, {earlier}), err


def test_no_leftovers_are_claimed_only_for_hosts_that_answered(fake_cluster: Make) -> None:
    cluster = fake_cluster("gpu0", "gpu1")
    cluster.hosts["gpu1"].reachable = False
    code, _, err = cluster.ddpctl("kill", cluster.hosts_file, "--strays")
    first, second = messages(err)
    assert code == 6
    assert first.startswith("ddpctl: error: gpu1: no answer")
    assert second == "ddpctl: no leftovers of dead runs on gpu0"


@pytest.mark.parametrize("hosts", [False, True])
def test_the_leftovers_of_one_run_are_ended_without_those_of_others(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch, hosts: bool
) -> None:
    monkeypatch.setattr(strays, "LEASE", -1.0)  # no node is too young
    cluster = fake_cluster(master_port="auto")
    first, second = running(cluster), running(cluster)
    for node in cluster.nodes:
        if node.node_rank == 0:
            node.exit(1)
    where = ["--hosts", cluster.hosts_file] if hosts else []
    words = ["kill", first if not hosts else first[:-1], "--strays", *where]
    code, out, err = cluster.ddpctl(*words)
    assert code == 0 and first in out and second not in out, err
    assert "1 leftover; repeat the command with -y to end what is left" in err
    assert cluster.ddpctl(*words, "-y")[0] == 0
    assert sorted(node.run_id for node in cluster.nodes if node.node_rank == 1) == [second]
    _, _, err = cluster.ddpctl(*words)
    assert "no leftovers of " in err and "on gpu[0-1]" in err


def test_leftovers_on_a_host_that_stops_answering_are_not_counted_as_ended(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strays, "LEASE", -1.0)  # no node is too young
    cluster = fake_cluster("gpu0", "gpu1", "gpu2")
    running(cluster)
    next(node for node in cluster.nodes if node.node_rank == 0).exit(1)

    def cut_off(*_: object) -> None:
        cluster.hosts["gpu1"].reachable = False

    monkeypatch.setattr(strays, "end_strays", cut_off)
    code, out, err = cluster.ddpctl("kill", cluster.hosts_file, "--strays", "-y")
    assert code == 6 and "gpu1: " in err
    assert [row.split()[0] for row in out.splitlines()] == ["gpu1", "gpu2"]
    assert "ended 0 of 2 leftovers" in err


def test_strays_with_all_are_those_of_all_dead_runs_and_no_live_run_is_stopped(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strays, "LEASE", -1.0)  # no node is too young
    cluster = fake_cluster(master_port="auto")
    dead, live = running(cluster), running(cluster)
    next(node for node in cluster.nodes if node.run_id == dead).exit(1)
    code, out, _ = cluster.ddpctl("kill", cluster.hosts_file, "--all", "--strays", "-y")
    assert code == 0, out
    left = [node.run_id for node in cluster.nodes if node.state == "running"]
    assert left == [live, live]


def test_killing_a_run_that_has_ended_names_it_and_says_so(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    cluster.nodes_end(exit_code=0)
    assert cluster.launch()[0] == 0
    code, _, err = cluster.ddpctl("kill")
    run_id = cluster.record["run_id"]
    assert code == 0 and cluster.nodes == []
    assert err == f"ddpctl: run {run_id}: had already ended; removed, nothing left on gpu[0-1]\n"
    assert cluster.record["state"] == "SUCCEEDED"


@pytest.mark.parametrize(
    ("ends", "state"),
    [
        (["succeeded", "succeeded"], "SUCCEEDED"),
        (["succeeded"], "CANCELLED"),
        (["succeeded", "failed"], "FAILED"),
        (["failed"], "FAILED"),  # the other node hangs
        (["hung", "stopped"], "FAILED"),
        ([None], "FAILED"),  # its supervisor was killed
        (["cancelled", "cancelled"], "CANCELLED"),  # by the time limit
        (["failed", "cancelled"], "CANCELLED"),
    ],
)
def test_a_run_that_ended_after_its_recorder_died_is_recorded_as_it_ended(
    fake_cluster: Make, ends: list[str | None], state: str
) -> None:
    cluster = fake_cluster()
    run_id = running(cluster)
    for node, end in zip(cluster.nodes, ends, strict=False):
        if end:
            node.end(0 if end == "succeeded" else 1, end)
        else:
            node.exit(137)
    assert cluster.ddpctl("kill", run_id)[0] == 0
    assert (cluster.record["state"], cluster.nodes) == (state, [])


def test_a_kill_records_how_each_node_ended(fake_cluster: Make) -> None:
    cluster = fake_cluster("gpu0", "gpu1", "gpu2")
    run_id = running(cluster)
    cluster.hosts["gpu1"].nodes[f"ddpctl-{run_id}-1"].end(3)
    cluster.hosts["gpu2"].reachable = False
    assert cluster.ddpctl("kill", run_id)[0] == 6
    nodes = cluster.record["attempts"][0]["nodes"]
    states = [(node["state"], node["exit_code"]) for node in nodes]
    assert states == [("CANCELLED", None), ("FAILED", 3), ("CANCELLED", None)]


def test_a_run_has_failed_even_if_the_host_that_it_lost_does_not_answer(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    run_id = running(cluster)
    cluster.hosts["gpu0"].nodes[f"ddpctl-{run_id}-0"].end(1)
    cluster.hosts["gpu1"].reachable = False
    assert cluster.ddpctl("kill", run_id)[0] == 6
    assert (cluster.record["state"], cluster.record["pending_stop"]) == ("FAILED", ["gpu1"])
    cluster.hosts["gpu1"].reachable = True
    assert cluster.ddpctl("ps", cluster.hosts_file)[0] == 0
    assert (cluster.record["state"], cluster.nodes) == ("FAILED", [])


def test_a_node_that_failed_while_a_stop_was_unconfirmed_does_not_make_its_run_fail(
    fake_cluster: Make,
) -> None:
    cluster = fake_cluster("gpu0")
    unknown(cluster, pending_stop=["gpu0"])
    cluster.nodes[0].end(1)
    assert cluster.ddpctl("ps", cluster.hosts_file)[0] == 0
    assert (cluster.record["state"], cluster.nodes) == ("CANCELLED", [])


def test_a_verbose_kill_says_of_each_host_what_was_done_there(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    run_id = running(cluster)
    cluster.nodes[0].end(0)
    code, _, err = cluster.ddpctl("kill", run_id, "--verbose")
    assert code == 0
    assert "gpu0: had already ended; removed, nothing left\n" in err
    assert "gpu1: stopped, nothing left\n" in err
    assert f"run {run_id}: stopped, nothing left on gpu[0-1]\n" in err


def test_a_node_that_its_launch_creates_during_the_kill_is_removed_too(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster()
    run_id = running(cluster)
    cluster.nodes[0].state = "created"
    not_yet = [cluster.nodes[0].host]
    nodes, listing = Docker.nodes, Docker.listing

    def before(docker: Docker, run_id: str | None = None) -> Sequence[NodeStatus]:
        return [node for node in nodes(docker, run_id) if node.host not in not_yet]

    def after(
        docker: Docker, run_id: str | None = None
    ) -> NodeListing:  # the second look of a stop
        not_yet.clear()
        return listing(docker, run_id)

    monkeypatch.setattr(Docker, "nodes", before)
    monkeypatch.setattr(Docker, "listing", after)
    code, _, err = cluster.ddpctl("kill", run_id)
    assert code == 0, err
    assert cluster.nodes == []


def test_kill_all_removes_what_a_launcher_created_and_never_started(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    running(cluster)
    for node in cluster.nodes:
        node.state = "created"
    code, _, err = cluster.ddpctl("kill", cluster.hosts_file, "--all", "-y")
    assert code == 0 and "had not started; removed, nothing left on gpu[0-1]" in err
    assert cluster.nodes == []


def test_kill_all_stops_all_runs_at_once(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster(master_port="auto")
    running(cluster), running(cluster)
    all_four, stop = threading.Barrier(4), Docker.stop

    def together(docker: Docker, status: NodeStatus, timeout: float) -> None:
        all_four.wait(timeout=20)
        stop(docker, status, timeout)

    monkeypatch.setattr(Docker, "stop", together)
    code, _, err = cluster.ddpctl("kill", cluster.hosts_file, "--all", "-y")
    assert code == 0 and err.count("stopped, nothing left on gpu[0-1]") == 2
    assert cluster.nodes == []


def test_a_host_with_two_accounts_is_remembered_by_its_own_name(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    document = json.loads(Path(cluster.hosts_file).read_text())
    twice = [{"host": "gpu1", "user": user} for user in ("ann", "bob")]
    Path(cluster.hosts_file).write_text(json.dumps({**document, "hosts": ["gpu0", *twice]}))
    run_id = running(cluster)
    cluster.hosts["gpu1"].reachable = False
    assert cluster.ddpctl("kill", run_id)[0] == 6
    assert cluster.record["pending_stop"] == ["gpu1"]
    cluster.hosts["gpu1"].reachable = True
    assert cluster.ddpctl("ps", cluster.hosts_file)[0] == 0
    assert cluster.record["pending_stop"] == []


@pytest.mark.parametrize(("answer", "code", "left"), [(False, 130, 2), (True, 0, 0)])
def test_without_a_run_it_asks_on_a_terminal(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch, answer: bool, code: int, left: int
) -> None:
    cluster = fake_cluster()
    run_id = running(cluster)
    questions = []
    monkeypatch.setattr("launcher.terminal.ask.can_ask", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda text, **_: questions.append(text) or answer)
    assert cluster.ddpctl("kill")[0] == code
    assert questions == [f"Stop run {run_id}?"]
    assert len(cluster.nodes) == left


def test_without_a_run_it_names_the_live_runs_if_the_newest_has_ended(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    run_id = running(cluster)
    code, _, err = cluster.launch("--no-check", "--name", "refused")
    assert code != 0 and "GPU" in err, err
    code, _, err = cluster.ddpctl("kill")
    assert code == 0 and len(cluster.nodes) == 2, err
    assert err.startswith("ddpctl: run refused-") and ": nothing to stop on gpu[0-1]\n" in err
    assert f"ddpctl: recorded as live: {run_id}; to stop one, run `ddpctl kill RUN`\n" in err
    code, _, err = cluster.ddpctl("kill", run_id)
    assert cluster.nodes == [] and "live" not in err


@pytest.mark.parametrize("flags", [[], ["--no-check"]])
def test_without_a_run_it_does_not_take_the_last_run_for_one_that_is_being_launched(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch, flags: list[str]
) -> None:
    cluster = fake_cluster()
    run_id = running(cluster)
    killed = []

    def push(*_: object) -> None:
        other = run_folder("other-20261127-000000-abcd")
        with locks_released_at_end(other):
            take_care(other, 1)
            killed.append(cluster.ddpctl("kill"))
        killed.append(cluster.ddpctl("kill"))
        raise PreflightError("something is wrong")

    monkeypatch.setattr("launcher.start.run_attempt.push", push)
    before = {*(state_home() / "runs").iterdir()}
    cluster.launch("--name", "next", *flags)
    [(code, _, both), (_, _, err)] = killed
    assert code == 2 and len(cluster.nodes) == 2, err
    assert "error: still being launched or resumed: " in both and both.count("next-") == 1
    assert (
        "error: still being launched or resumed: next-" in err
        and "; to stop one, press Ctrl-C" in err
    )
    assert f"`ddpctl kill {run_id}`" in err
    assert {*(state_home() / "runs").iterdir()} == before


def test_without_any_record_it_names_the_run_that_is_being_launched(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster()
    killed = []

    def push(*_: object) -> None:
        killed.append(cluster.ddpctl("kill"))
        raise PreflightError("something is wrong")

    monkeypatch.setattr("launcher.start.run_attempt.push", push)
    cluster.launch("--name", "first")
    [(code, _, err)] = killed
    assert code == 2 and "error: still being launched or resumed: first-" in err, err
    assert err.endswith("to stop one, press Ctrl-C there\n")


@pytest.mark.parametrize("how", ["run", "nothing", "run and hosts", "hosts"])
def test_a_resume_that_is_still_checking_or_pushing_here_is_killed_and_the_next_one_starts(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    cluster = fake_cluster()
    cluster.nodes_end(1)
    assert cluster.launch()[0] == 1
    run_id, hosts = str(cluster.record["run_id"]), cluster.hosts_file
    words = {"run": [run_id], "nothing": [], "run and hosts": [run_id, "--hosts", hosts]}
    killed, push = [], run_attempt.push

    def kill_and_push(*arguments: Any) -> object:
        killed.append(cluster.ddpctl("kill", *words.get(how, [hosts])))
        return push(*arguments)

    with monkeypatch.context() as resuming:
        resuming.setattr(run_attempt, "push", kill_and_push)
        code, _, err = cluster.ddpctl("resume", run_id)
    assert code == 7 and f"run {run_id} was killed before it started" in err
    [(code, _, err)] = killed
    first, second = messages(err)
    assert (
        first
        == f"ddpctl: run {run_id}: its next attempt, which is still being prepared, will not start"
    )
    assert code == 0 and second.startswith(
        f"ddpctl: run {run_id}: had already ended; removed, nothing left"
    )
    assert cluster.nodes == [] and len(cluster.record["attempts"]) == 1
    cluster.nodes_end(0)
    code, _, err = cluster.ddpctl("resume", run_id)
    assert code == 0 and ", attempt 2, started" in err, err


def test_a_kill_on_some_hosts_of_a_run_leaves_its_resume_on_others_alone(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster("gpu0", "gpu1", "gpu2")
    cluster.nodes_end(1)
    assert cluster.launch("--exclude", "gpu2")[0] == 1
    run_id = str(cluster.record["run_id"])
    killed, push = [], run_attempt.push

    def kill_and_push(*arguments: Any) -> object:
        killed.append(cluster.ddpctl("kill", run_id, "--hosts", "gpu0,"))
        return push(*arguments)

    cluster.nodes_end(0)
    monkeypatch.setattr(run_attempt, "push", kill_and_push)
    code, _, err = cluster.ddpctl("resume", run_id, "--hosts", "gpu1,gpu2")
    assert code == 0 and ", attempt 2, started" in err, (err, killed)


def test_without_a_run_it_does_not_take_the_last_run_for_an_older_one_that_is_being_resumed(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster()
    cluster.nodes_end(1)
    assert cluster.launch("--name", "older")[0] == 1
    older = str(cluster.record["run_id"])
    cluster.ddpctl("kill", older)
    for host in cluster:
        host.on_start = lambda node: None
    newest = cluster.launch("--detach")[1].strip()
    with locks_released_at_end(run_folder(older)):
        take_care(run_folder(older), 2)
        code, _, err = cluster.ddpctl("kill")
        everything = cluster.ddpctl("kill", cluster.hosts_file, "--strays")
    assert code == 2 and f"error: still being launched or resumed: {older}; to stop one" in err
    assert f"`ddpctl kill {newest}`" in err and everything[0] == 0
    assert cluster.ddpctl("kill")[0] == 0


def test_a_run_that_is_named_or_a_yes_asks_nothing(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster()
    run_id = running(cluster)
    monkeypatch.setattr("launcher.terminal.ask.can_ask", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda *_, **__: pytest.fail("it asks"))
    for words in ([run_id], ["-y"]):
        assert cluster.ddpctl("kill", *words)[0] == 0


def test_json_names_the_owners_of_nodes_that_were_left_alone(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    run_id = running(cluster)
    labels = cluster.hosts["gpu1"].nodes[f"ddpctl-{run_id}-1"].arguments["labels"]
    labels["io.ddpctl.owner"] = "alice@ws"
    code, out, err = cluster.ddpctl("kill", run_id, "--json")
    assert code == 0 and "did not touch nodes on gpu1 that belong to alice@ws" in err
    hosts = json.loads(out)["runs"][0]["hosts"]
    assert [host["left_alone"] for host in hosts] == [[], ["alice@ws"]]
    assert [node.host for node in cluster.nodes] == ["gpu1"]


@pytest.mark.parametrize("flags", [[], ["--all", "-y"], ["r-20261121", "--hosts"]])
def test_json_is_printed_even_if_no_host_answers(fake_cluster: Make, flags: list[str]) -> None:
    cluster = fake_cluster()
    for host in cluster:
        host.reachable = False
    code, out, err = cluster.ddpctl("kill", "--json", *flags, cluster.hosts_file)
    document = json.loads(out)
    assert code == 4 and len(messages(err)) == 1
    assert document["runs"] == []
    assert [each["host"] for each in document["unseen"]] == ["gpu0", "gpu1"]


def test_json_names_the_host_that_may_have_a_run_that_the_others_do_not_have(
    fake_cluster: Make,
) -> None:
    cluster = fake_cluster()
    cluster.hosts["gpu1"].reachable = False
    code, out, err = cluster.ddpctl("kill", "r-2026", "--hosts", cluster.hosts_file, "--json")
    assert code == 4 and "no run r-2026 on gpu0" in err
    document = json.loads(out)
    assert document["runs"] == [] and [each["host"] for each in document["unseen"]] == ["gpu1"]


def test_a_kill_on_some_hosts_of_a_run_does_not_record_that_it_ended(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    run_id = running(cluster)
    code, _, err = cluster.ddpctl("kill", run_id, "--hosts", "gpu0,")
    assert code == 0 and "nothing left on gpu0" in err
    assert [node.host for node in cluster.nodes] == ["gpu1"]
    assert cluster.record["state"] == "RUNNING"
    assert cluster.ddpctl("kill", run_id)[0] == 0
    assert cluster.record["state"] == "CANCELLED"


def unknown(cluster: FakeCluster, pending_stop: list[str]) -> str:
    """Start a run and record its state as UNKNOWN. Return its id."""
    run_id = running(cluster)
    [file] = cluster.state.glob("ddpctl/runs/*/run.json")
    record = {**cluster.record, "state": "UNKNOWN", "pending_stop": pending_stop}
    record["attempts"][-1]["state"] = "UNKNOWN"
    file.write_text(json.dumps(record))
    return run_id


def test_a_pending_stop_that_no_host_confirms_does_not_record_that_the_run_ended(
    fake_cluster: Make,
) -> None:
    cluster = fake_cluster("gpu0")
    unknown(cluster, pending_stop=["gpu0"])
    for reachable, code, state in ((False, 4, "UNKNOWN"), (True, 0, "CANCELLED")):
        cluster.hosts["gpu0"].reachable = reachable
        assert cluster.ddpctl("ps", cluster.hosts_file)[0] == code
        assert cluster.record["state"] == state


def test_a_kill_on_some_hosts_of_an_unknown_run_does_not_record_that_it_ended(
    fake_cluster: Make,
) -> None:
    cluster = fake_cluster()
    run_id = unknown(cluster, pending_stop=[])
    assert cluster.ddpctl("kill", run_id, "--hosts", "gpu0,")[0] == 0
    assert [node.host for node in cluster.nodes] == ["gpu1"]
    assert cluster.record["state"] == "UNKNOWN"
    assert cluster.ddpctl("kill", run_id)[0] == 0
    assert cluster.record["state"] == "CANCELLED"


def damage(path: Path, how: str) -> None:
    path.unlink()
    {"pipe": os.mkfifo, "loop": lambda path: path.symlink_to(path), "folder": Path.mkdir}[how](path)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("how", ["pipe", "loop", "folder"])
def test_what_takes_the_place_of_a_record_stops_neither_ps_nor_kill(
    fake_cluster: Make, how: str
) -> None:
    cluster = fake_cluster()
    run_id = running(cluster)
    [path] = cluster.state.glob("ddpctl/runs/*/run.json")
    damage(path, how)
    code, out, err = cluster.ddpctl("ps", cluster.hosts_file)
    assert (code, run_id in out) == (0, True), err
    code, _, err = cluster.ddpctl("kill")
    assert (code, cluster.nodes) == (0, []), err
    assert f"{path}: cannot be read" in err


@pytest.mark.timeout(60)
@pytest.mark.parametrize("how", ["pipe", "loop", "folder"])
def test_what_takes_the_place_of_the_kept_hosts_file_makes_no_command_wait(
    fake_cluster: Make, how: str
) -> None:
    cluster = fake_cluster()
    run_id = running(cluster)
    [path] = cluster.state.glob("ddpctl/runs/*/hosts.yaml")
    damage(path, how)
    code, out, err = cluster.ddpctl("ps")
    assert (code, run_id in out) == (0, True), err
    code, _, err = cluster.ddpctl("kill", run_id)
    assert (code, f"ddpctl kill {run_id} --hosts HOSTS" in err) == (2, True), err
    code, _, err = cluster.ddpctl("kill", run_id, "--hosts", cluster.hosts_file)
    assert (code, cluster.nodes) == (0, []), err


def test_a_damaged_record_is_one_warning_and_stops_no_kill(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    run_id = running(cluster)
    [file] = cluster.state.glob("ddpctl/runs/*/run.json")
    file.write_text('{"version": 1, "attempts": []}')
    code, _, err = cluster.ddpctl("kill", run_id)
    warning, summary = messages(err)
    assert code == 0 and cluster.nodes == []
    assert "run.json: cannot be read (a field is missing)" in warning
    assert "stopped, nothing left" in summary


def test_without_the_hosts_file_of_the_run_kill_asks_for_another(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    run_id = running(cluster)
    [file] = cluster.state.glob("ddpctl/runs/*/hosts.yaml")
    file.write_text("hosts: [")
    code, _, err = cluster.ddpctl("kill")
    assert code == 2 and len(messages(err)) == 1
    assert f"`ddpctl kill {run_id} --hosts HOSTS`" in err
    assert cluster.ddpctl("kill", run_id, "--hosts", cluster.hosts_file)[0] == 0
    assert cluster.nodes == []
