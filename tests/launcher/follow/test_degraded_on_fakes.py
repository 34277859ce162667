"""Records and logs that cannot be read or written, on fake hosts: the run's own exit code stays."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes import FakeCluster, FakeNode

from launcher.terminal.console import Console

Make = Callable[..., FakeCluster]


def run_folder(cluster: FakeCluster) -> Path:
    [folder] = (cluster.state / "ddpctl" / "runs").iterdir()
    return folder


@pytest.mark.parametrize("exit_code", [0, 1])
def test_a_record_that_is_lost_during_the_run_changes_no_exit_code(
    fake_cluster: Make, exit_code: int
) -> None:
    cluster = fake_cluster("gpu0")

    def lose(node: FakeNode) -> None:
        path = run_folder(cluster) / "run.json"
        path.unlink()
        path.mkdir()  # neither readable nor writable
        node.end(exit_code)

    cluster.hosts["gpu0"].on_start = lose
    code, _, err = cluster.launch("--on-exit", "echo ran: $DDPCTL_STATE")
    assert code == exit_code
    assert err.count("not recorded: ") == 1 and "internal error" not in err
    assert f"ran: {'FAILED' if exit_code else 'SUCCEEDED'}" in err


def test_a_full_disk_hides_no_line_of_a_run_that_is_followed(fake_cluster: Make) -> None:
    cluster = fake_cluster("gpu0")

    def fill(node: FakeNode) -> None:
        logs = run_folder(cluster) / "logs"
        (logs / "node-0.log").symlink_to("/dev/full")
        node.say("loss 0.1", 0)
        node.end(0)

    cluster.hosts["gpu0"].on_start = fill
    code, out, err = cluster.launch()
    assert (code, out) == (0, "[gpu0:0] loss 0.1\n")
    assert err.count("not recorded: ") == 1 and "internal error" not in err


def test_a_run_that_is_left_gets_a_recorder_even_if_its_log_cannot_be_written(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster("gpu0")

    def fail(node: FakeNode) -> None:
        (run_folder(cluster) / "logs" / "node-0.log").mkdir()
        node.say("loss 0.1", 0)

    def leave(console: Console, text: str) -> None:
        say(console, text)
        if "not recorded: " in text:
            os.kill(os.getpid(), signal.SIGQUIT)

    say = Console.say
    monkeypatch.setattr(Console, "say", leave)
    cluster.hosts["gpu0"].on_start = fail
    code, out, err = cluster.launch()
    assert (code, out) == (0, "[gpu0:0] loss 0.1\n"), err
    assert cluster.recorders == [cluster.record["run_id"]]


@pytest.mark.parametrize("in_the_way", [".lock", "node-0.log", ".node-0.index"])
def test_attach_shows_and_ends_as_the_run_did_without_a_log(
    fake_cluster: Make, in_the_way: str
) -> None:
    cluster = fake_cluster("gpu0")
    run_id = cluster.launch("--detach")[1].strip()
    logs = run_folder(cluster) / "logs"
    (logs / in_the_way).mkdir(parents=True)
    cluster.nodes[0].say("loss 0.1", 0)
    cluster.nodes[0].end(0)
    code, out, err = cluster.ddpctl("attach", run_id)
    assert (code, out) == (0, "[gpu0:0] loss 0.1\n"), err
    assert "not recorded: " in err and "internal error" not in err


def test_a_report_of_a_run_without_a_readable_record_is_one_line(fake_cluster: Make) -> None:
    cluster = fake_cluster("gpu0")
    cluster.nodes_end(exit_code=0)
    assert cluster.launch()[0] == 0
    (run_folder(cluster) / "run.json").write_text("[]")
    for command in ("report", "attach", "resume"):
        code, out, err = cluster.ddpctl(command)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1 and "run.json: cannot be read" in err
