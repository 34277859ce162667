"""Whole runs on this machine with `engine: process`: real supervisors, no Docker."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
from local_machine import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_run_succeeds_and_is_remembered_fetched_and_resumed(machine: Machine) -> None:
    done = machine.ddpctl("launch", "hosts.yaml", "--name", "t", "--env", "WRITE=1")
    lines = [line for line in done.stdout.splitlines() if "up" in line]
    assert sorted(lines) == [
        f"[local:{rank}] up {rank} ['two words', '$(x)'] attempt 1" for rank in range(4)
    ]
    record = machine.record()
    assert record["state"] == "SUCCEEDED"
    assert [node["exit_code"] for node in record["attempts"][0]["nodes"]] == [0, 0]
    machine.ddpctl("fetch", "--to", "got")
    assert (machine.folder / "got" / "checkpoints" / "kept.txt").read_text() == "x" * 1000
    again = machine.ddpctl("fetch", "--to", "got", "--json")
    assert json.loads(again.stdout)["fetched"] == 0
    refused = machine.ddpctl("resume", code=2)
    assert "has already succeeded" in refused.stderr and "--force" in refused.stderr
    with (machine.folder / "code" / "train.py").open("a") as code:
        code.write("# changed\n")
    resumed = machine.ddpctl("resume", "--force")
    assert "attempt 2, started" in resumed.stderr
    assert "attempt 2: the code in workdir differs from that of attempt 1" in resumed.stderr
    logs = machine.ddpctl("logs", "--rank", "3").stdout.splitlines()
    assert [line.rsplit(" ", 1)[1] for line in logs] == ["1", "2"]
    assert machine.record()["attempts"][1]["state"] == "SUCCEEDED"
    assert machine.left() == []


def test_the_first_failure_is_named_and_the_others_are_stopped(machine: Machine) -> None:
    done = machine.ddpctl("launch", "hosts.yaml", "--env", "BAD=3", code=1)
    assert "ValueError: boom on purpose" in done.stderr
    failure = machine.record()["attempts"][0]["first_failure"]
    assert (failure["rank"], failure["node_rank"], failure["local_rank"]) == (3, 1, 1)
    assert failure["exit_code"] == 1
    assert machine.left() == []


def test_a_detached_run_is_listed_followed_and_killed(machine: Machine) -> None:
    started = machine.ddpctl("launch", "hosts.yaml", "--detach", "--env", "SLEEP=100")
    run_id = started.stdout.strip()
    seen = json.loads(machine.ddpctl("ps", "hosts.yaml", "--json").stdout)
    assert [run["state"] for run in seen["runs"] if run["run_id"] == run_id] == ["RUNNING"]
    watching = machine.start("attach", run_id)
    killed = json.loads(machine.ddpctl("kill", run_id, "--json").stdout)
    assert killed["runs"][0]["confirmed"] is True
    watching.communicate(timeout=60)
    assert watching.returncode == 7
    left = json.loads(machine.ddpctl("ps", "hosts.yaml", "--json", "--all").stdout)["runs"]
    assert [run["state"] for run in left if run["run_id"] == run_id] == ["CANCELLED"]
    machine.ddpctl("kill", run_id)  # once more is fine
    assert machine.record()["state"] == "CANCELLED"


def test_a_hosts_file_means_the_run_that_is_alive_there(machine: Machine) -> None:
    machine.ddpctl("launch", "hosts.yaml", "--no-check")
    machine.ddpctl("launch", "hosts.yaml", "--no-check")
    machine.env["SLEEP"] = "600"
    launched = machine.ddpctl("launch", "hosts.yaml", "--no-check", "-d", "--env", "SLEEP")
    [killed] = json.loads(machine.ddpctl("kill", "hosts.yaml", "-y", "--json").stdout)["runs"]
    assert killed["run_id"] == launched.stdout.strip()
    assert killed["confirmed"] and killed["hosts"][0]["stopped"] == 2


def test_an_interrupted_launch_stops_its_run(machine: Machine) -> None:
    process = machine.start("launch", "hosts.yaml", "--env", "SLEEP=100")
    assert process.stdout is not None
    while "up" not in (line := process.stdout.readline()):
        assert line, "the run ended by itself"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert machine.record()["state"] == "CANCELLED"
    assert machine.left() == []


def test_an_interrupted_logs_leaves_the_run_alone(machine: Machine) -> None:
    run_id = machine.ddpctl("launch", "hosts.yaml", "--detach", "--env", "SLEEP=100").stdout.strip()
    following = machine.start("logs", "-f")
    assert following.stdout is not None and "up" in following.stdout.readline()
    following.send_signal(signal.SIGINT)
    following.communicate(timeout=60)
    assert following.returncode == 130
    assert "RUNNING" in machine.ddpctl("ps").stdout
    machine.ddpctl("kill", run_id)


@pytest.mark.parametrize("argv", [("logs", "-f"), ("ps", "--watch")])
def test_what_repeats_ends_when_its_reader_leaves(machine: Machine, argv: tuple[str, ...]) -> None:
    run_id = machine.ddpctl("launch", "hosts.yaml", "--detach", "--env", "SLEEP=100").stdout.strip()
    following = machine.start(*argv)
    assert following.stdout is not None and following.stdout.readline()
    following.stdout.close()
    assert following.wait(timeout=60) == 0  # the run prints nothing that would fail
    assert "RUNNING" in machine.ddpctl("ps").stdout
    machine.ddpctl("kill", run_id)


def test_logs_of_a_live_and_of_a_failed_run_are_chosen(machine: Machine) -> None:
    machine.ddpctl("launch", "hosts.yaml", "--detach", "--env", "BAD=2", "--env", "SLEEP=2")
    live = machine.ddpctl("logs", "-f", "--rank", "1", "--grep", "^.local:1. up")
    assert live.stdout == "[local:1] up 1 ['two words', '$(x)'] attempt 1\n"
    machine.ddpctl("attach", code=1)
    end = time.monotonic() + 60
    while machine.left():  # the recorder of a detached run ends after it
        assert time.monotonic() < end
        time.sleep(0.1)
    of_node = machine.ddpctl("logs", "--node", "1", "--grep", r"\] up", "--since", "1h").stdout
    assert sorted(line[:9] for line in of_node.splitlines()) == ["[local:2]", "[local:3]"]
    for flags in (["--rank", "4"], ["--node", "0-2"], ["--host", "gpu9"], ["--attempt", "2"]):
        assert flags[0] in machine.ddpctl("logs", *flags, code=2).stderr
    same = machine.ddpctl(
        "logs", "--host", "local", "--attempt", "1", "--rank", "2-3", "--tail", "1"
    )
    assert same.stdout
    last = machine.ddpctl("logs", "--rank", "2", "--tail", "1").stdout
    assert last == "[local:2] ValueError: boom on purpose\n"


def test_nodes_with_different_numbers_of_processes(tmp_path: Path) -> None:
    machine = Machine(tmp_path, real_torchrun=True)  # which waits for the ranks of all nodes
    path = machine.folder / "hosts.yaml"
    document = json.loads(path.read_text())
    document["hosts"] = [
        {"host": "local", "gpus": 0, "nproc_per_node": count} for count in (3, 1, 2)
    ]
    path.write_text(json.dumps(document))
    done = machine.ddpctl("launch", "hosts.yaml", "--env", "BAD=4", code=1)
    lines = [line for line in done.stdout.splitlines() if "] up " in line]
    assert sorted(lines) == [
        f"[local:{rank}] up {rank} ['two words', '$(x)'] attempt 1" for rank in range(6)
    ]
    failure = machine.record()["attempts"][0]["first_failure"]
    assert (failure["rank"], failure["node_rank"], failure["local_rank"]) == (4, 2, 0)
    assert machine.record()["attempts"][0]["world_size"] == 6
    assert machine.left() == []


def test_a_run_that_takes_too_long_is_cancelled(machine: Machine) -> None:
    """A second is over before torchrun has started a rank; a rank that saves is tested elsewhere."""
    done = machine.ddpctl(
        "launch", "hosts.yaml", "--no-check", "--time-limit", "1s", "--env", "SLEEP=100", code=7
    )
    assert "the run reached its time limit of 1 s" in done.stderr
    record = machine.record()
    assert record["state"] == "CANCELLED"
    assert record["attempts"][0]["first_failure"]["kind"] == "time-limit"
    assert machine.left() == []
