"""Launching on fake hosts: all nodes start or none, and the exit code is the run's."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeCluster, FakeNode

from launcher.errors import StateError
from launcher.follow.node_watcher import NodeWatcher
from launcher.outcomes import RunState
from launcher.runs import run_folder
from launcher.runs.attempt_lock import is_taken_care_of
from launcher.start import run_attempt
from launcher.start.planned_attempt import PlannedAttempt
from launcher.start.run_attempt import where_time_went

Make = Callable[..., FakeCluster]
ERROR = "ValueError: bad label 1000"


def rank_raises(node: FakeNode) -> None:
    """Node 1's rank raises; the other nodes are told to stop."""
    if node.node_rank == 1:
        lines = ["Traceback (most recent call last):", '  File "train.py", line 4', ERROR]
        for line in lines:
            node.say(line, rank=1)
        node.event("rank_exit", rank=1, local_rank=0, pid=7, exit_code=1, last_lines=lines)
        node.end(1, reason={"kind": "rank", "message": "rank 1 failed", "node_rank": 1})
    else:
        node.end(143, "stopped")


def test_a_run_that_succeeds_exits_with_0_and_is_recorded(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    for host in cluster:
        host.on_start = lambda node: (node.say("loss 0.1", node.node_rank), node.end(0))[1]
    code, out, err = cluster.launch()
    assert code == 0, err
    assert sorted(out.splitlines()) == ["[gpu0:0] loss 0.1", "[gpu1:1] loss 0.1"]
    attempt = cluster.record["attempts"][0]
    assert cluster.record["state"] == attempt["state"] == "SUCCEEDED"
    assert [node["exit_code"] for node in attempt["nodes"]] == [0, 0]


def test_a_sanity_run_is_taken_care_of_only_until_it_ends(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    for host in cluster:
        host.on_start = lambda node: node.end(0)
    _, _, err = cluster.ddpctl("sanity", cluster.hosts_file)
    [folder] = run_folder.run_folders()
    assert folder.load().state is RunState.SUCCEEDED, err
    assert not is_taken_care_of(folder)


def test_a_failing_rank_exits_with_1_and_is_named(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    for host in cluster:
        host.on_start = rank_raises
    code, _, err = cluster.launch()
    assert code == 1
    assert "rank 1 (gpu1, local_rank 0)" in err and "bad label 1000" in err
    attempt = cluster.record["attempts"][0]
    assert attempt["first_failure"]["host"] == "gpu1"
    assert attempt["first_failure"]["kind"] == "exception"


def test_hosts_are_not_probed_while_nothing_has_failed(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    probes: list[int] = []
    monkeypatch.setattr(NodeWatcher, "probe", lambda self: probes.append(self.rank))
    cluster = fake_cluster()
    cluster.nodes_end(0)
    assert cluster.launch()[0] == 0
    assert probes == []


def test_a_start_that_fails_is_an_event(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    cluster.hosts["gpu1"].refuses["start"] = "no space left on device"
    event = 'echo "$DDPCTL_EVENT $DDPCTL_ATTEMPT $DDPCTL_MESSAGE" >> events'
    assert cluster.launch("--on-event", event)[0] == 1
    assert Path("events").read_text() == "attempt-ended 1 FAILED\n"


@pytest.mark.parametrize("call", ["create", "start"])
def test_one_host_that_refuses_leaves_nothing_on_any_host(fake_cluster: Make, call: str) -> None:
    cluster = fake_cluster("gpu0", "gpu1", "gpu2")
    cluster.hosts["gpu1"].refuses[call] = "no space left on device"
    code, _, err = cluster.launch()
    assert code == 1, err
    assert f"gpu1: could not {call} the container: no space left on device" in err
    assert cluster.nodes == []
    assert cluster.record["state"] == "FAILED"


def test_a_host_that_is_down_is_reported_before_anything_is_created(fake_cluster: Make) -> None:
    cluster = fake_cluster("gpu0", "gpu1", "gpu2")
    cluster.hosts["gpu1"].reachable = cluster.hosts["gpu2"].reachable = False
    code, _, err = cluster.launch()
    assert code == 4
    assert "error: gpu[1-2]: no answer" in err
    assert cluster.hosts["gpu0"].count("create") == 0


def test_a_taken_master_port_exits_with_3_and_starts_nothing(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    code, run_id, _ = cluster.launch("--detach")
    assert code == 0
    code, _, err = cluster.launch()
    assert code == 3
    assert "29500" in err and run_id.strip() in err
    assert {node.run_id for node in cluster.nodes} == {run_id.strip()}


def test_a_dry_run_asks_no_host(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    code, out, _ = cluster.launch("--dry-run")
    assert code == 0 and "torchrun" in out
    assert [host.asked for host in cluster] == [[], []]


def test_ranks_that_the_supervisors_leave_running_are_stopped_by_the_launcher(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.follow.session.PEER_STOP_TIMEOUT", 0.1)
    cluster = fake_cluster()
    cluster.hosts["gpu1"].on_start = rank_raises
    code, _, _ = cluster.launch()
    assert code == 1
    assert cluster.hosts["gpu0"].count("stop") == 1
    assert cluster.hosts["gpu0"].nodes == {} or all(n.ended.is_set() for n in cluster.nodes)


def test_the_time_limit_reaches_every_supervisor_in_seconds(fake_cluster: Make) -> None:
    cluster = fake_cluster(time_limit="2h30m")
    cluster.nodes_end(0)
    assert re.search("time limit +2h30m", cluster.launch("--dry-run")[1])
    for flags, limit in (((), 9000), (("--time-limit", "90s"), 90)):
        assert cluster.launch(*flags)[0] == 0
        specs = [json.loads(n.journal.with_name("spec.json").read_text()) for n in cluster.nodes]
        assert [spec["time_limit"] for spec in specs] == [limit, limit]
        for host in cluster:
            host.nodes.clear()


def test_included_hosts_are_the_only_nodes(fake_cluster: Make) -> None:
    cluster = fake_cluster("gpu0", "gpu1", "gpu2")
    cluster.nodes_end(0)
    assert cluster.launch("--include", "gpu2@gpu1")[0] == 0
    assert [(node.node_rank, node.host) for node in cluster.nodes] == [(0, "gpu1"), (1, "gpu2")]
    assert cluster.hosts["gpu0"].asked == []


@pytest.mark.parametrize("command", ["launch", "check", "push", "sanity"])
def test_an_unknown_host_to_include_or_exclude_is_one_line(
    fake_cluster: Make, command: str
) -> None:
    cluster = fake_cluster()
    for flag in ("--include", "--exclude"):
        code, _, err = cluster.ddpctl(command, cluster.hosts_file, flag, "gpu9")
        assert code == 2 and err.count("\n") == 1
        assert "has no host 'gpu9'; name one of gpu[0-1]" in err


def test_the_exit_hook_runs_with_the_outcome_although_the_disk_filled_during_the_run(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster("gpu0")
    note = cluster.folder / "note"

    def full(path: Path, *_: object, **__: object) -> None:
        raise StateError(
            f"{path}: cannot be written: no space left on device; free up space on that disk"
        )

    def fill_and_fail(node: FakeNode) -> None:
        monkeypatch.setattr(run_folder, "write_atomically", full)
        node.end(1)

    cluster.hosts["gpu0"].on_start = fill_and_fail
    code, _, err = cluster.launch("--on-exit", f'echo "$DDPCTL_STATE $DDPCTL_EXIT_CODE" > {note}')
    assert code == 1, err
    assert "not recorded: " in err
    assert cluster.record["state"] != "FAILED"
    assert note.read_text() == "FAILED 1\n"


def test_one_line_says_where_the_time_of_a_slow_start_went(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert where_time_went([("checking 2 hosts", 1.5), ("starting 2 nodes", 0.4)]) == ""
    assert where_time_went([("checking 2 hosts", 1.5), ("starting 2 nodes", 0.6)]) == (
        "took 2.1 s: checking 2 hosts 1.5 s, starting 2 nodes 0.6 s"
    )
    monkeypatch.setattr(run_attempt, "QUIET_BEFORE", 0.0)
    monkeypatch.setattr(run_attempt, "SHORTEST", 0.0)
    cluster = fake_cluster()
    cluster.nodes_end(exit_code=0)
    [line] = [line for line in cluster.launch()[2].splitlines() if ": took " in line]
    for step in ("asking 2 hosts", "checking what the hosts already have", "starting 2 nodes"):
        assert step in line


def test_launch_with_json_prints_the_record_of_the_ended_run_and_no_log_line(
    fake_cluster: Make,
) -> None:
    cluster = fake_cluster()
    for host in cluster:
        host.on_start = lambda node: (node.say("loss 0.1", node.node_rank), node.end(0))[1]
    code, out, err = cluster.launch("--json")
    assert code == 0, err
    document = json.loads(out)
    assert document == cluster.record
    assert document["state"] == "SUCCEEDED"
    [log] = cluster.state.glob("ddpctl/runs/*/logs/node-0.log")
    assert "loss 0.1" in log.read_text()


def test_launch_with_json_and_detach_prints_the_record_of_the_started_run(
    fake_cluster: Make,
) -> None:
    cluster = fake_cluster()
    code, out, err = cluster.launch("--json", "--detach")
    assert code == 0, err
    assert json.loads(out)["state"] == "RUNNING"


def test_a_dataset_that_is_removed_during_a_launch_stops_it_instead_of_leaving_an_empty_one(
    fake_cluster: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("x")
    cluster = fake_cluster("gpu0", dataset=str(tmp_path / "data"))
    cluster.nodes_end(0)
    datasets = cluster.hosts["gpu0"].home / ".ddpctl" / "datasets"
    assert cluster.ddpctl("push", cluster.hosts_file, "--dataset")[0] == 0

    make_plan = run_attempt.make_plan

    def pruned_elsewhere(*args: Any) -> PlannedAttempt:
        shutil.rmtree(datasets)
        return make_plan(*args)

    monkeypatch.setattr(run_attempt, "make_plan", pruned_elsewhere)
    code, _, err = cluster.launch()
    assert code == 1 and "removed the pushed code or dataset" in err
    assert not datasets.exists() and cluster.nodes == []


def test_a_run_may_be_resumed_again_with_fewer_hosts_than_min_nodes(fake_cluster: Make) -> None:
    cluster = fake_cluster(min_nodes=2)
    cluster.nodes_end(1)
    assert cluster.launch()[0] == 1
    for more in (["--exclude", "gpu1"], []):
        code, _, err = cluster.ddpctl("resume", *more)
        assert code == 1, err
    assert [node.host for node in cluster.nodes if node.attempt == 3] == ["gpu0"]


def test_without_checks_too_all_gpus_are_not_none_because_nvidia_smi_fails(
    fake_cluster: Make,
) -> None:
    cluster = fake_cluster(gpus=2)
    cluster.nodes_end(exit_code=0)
    document = json.loads(Path(cluster.hosts_file).read_text())
    document["defaults"]["gpus"] = "all"
    Path(cluster.hosts_file).write_text(json.dumps(document))
    nvidia_smi = cluster.hosts["gpu1"].tools / "nvidia-smi"
    nvidia_smi.write_text("#!/bin/sh\necho Driver/library version mismatch; exit 18\n")
    code, _, err = cluster.launch()
    assert code == 3 and "gpu1: nvidia-smi fails: Driver/library version mismatch" in err, err
    assert not cluster.nodes
    document["hosts"] = ["gpu0", {"host": "gpu1", "gpus": 0}]
    Path(cluster.hosts_file).write_text(json.dumps(document))
    assert cluster.launch()[0] == 0
