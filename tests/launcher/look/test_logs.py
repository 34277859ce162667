"""`logs`: this machine's copy is read only as far as somebody reads it."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeCluster

from launcher.follow.run_lines import RunLines
from launcher.logs.log_entry import LogEntry, parse
from launcher.logs.query import LogFilter
from launcher.logs.store import LogStore, NodeLog, known_marks
from launcher.look import logs
from launcher.own_folders import locked
from launcher.runs.run_folder import RunFolder, run_folder
from launcher.terminal.console import Console


def test_nothing_more_is_read_once_the_reader_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path / "20261122-100000-abcd")
    store = LogStore.acquire(folder.logs, pytest.fail)
    assert store
    for time in range(50):
        [entry] = parse(b"[a:0] line\n", 0, time)
        store.node(0).append([entry._replace(offset=time + 1)], 1)
    store.close()
    reader, writer = os.pipe()
    os.close(reader)
    shown = []
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(open(writer, "wb")))  # noqa: SIM115, PTH123
    monkeypatch.setattr(RunLines, "show", lambda _, entries: shown.append(entries))
    console = Console()
    logs.print_recorded(folder, LogFilter(), known_marks(folder.logs), RunLines(console))
    assert shown == []


def test_after_a_restart_the_attempts_since_then_are_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Several may have started meanwhile."""
    folder, console = RunFolder(tmp_path / "20261122-100000-abcd"), Console()
    store = LogStore.acquire(folder.logs, pytest.fail)
    assert store
    for number in (1, 2, 3):
        [entry] = parse(b"[a:0] of %d\n" % number, 0, float(number))
        store.node(0).append([entry._replace(offset=10)], number)
    store.close()
    for first, shown in ((2, "[a:0] of 2\n[a:0] of 3\n"), (3, "[a:0] of 3\n")):
        known = known_marks(folder.logs)
        logs.print_recorded(folder, LogFilter(), known, RunLines(console), first)
        out, err = capfd.readouterr()
        assert (out, "attempt 3:" in err) == (shown, first == 2)


def test_a_silent_host_is_named_while_a_recorder_copies_the_lines(
    fake_cluster: Callable[..., FakeCluster],
) -> None:
    cluster = fake_cluster("gpu0", "gpu1")
    assert cluster.launch("--detach")[0] == 0
    cluster.hosts["gpu1"].reachable = False
    store = LogStore.acquire(run_folder(cluster.record["run_id"]).logs, pytest.fail)
    assert store
    code, _, err = cluster.ddpctl("logs")
    store.close()
    assert (code, "gpu1: no answer" in err) == (4, True), err


def while_followed(monkeypatch: pytest.MonkeyPatch, deed: Callable[[], object]) -> None:
    """Do `deed` once `logs` has copied and printed the lines so far."""
    printed = logs.print_recorded

    def then_do(*arguments: Any) -> None:
        printed(*arguments)
        deed()

    monkeypatch.setattr(logs, "print_recorded", then_do)


def test_a_host_that_is_lost_while_its_lines_are_followed_is_named(
    fake_cluster: Callable[..., FakeCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster("gpu0", "gpu1")
    assert cluster.launch("--detach")[0] == 0

    def lose_gpu1() -> None:
        cluster.hosts["gpu1"].reachable = False
        cluster.nodes[0].end(1)

    while_followed(monkeypatch, lose_gpu1)
    code, _, err = cluster.ddpctl("logs", "-f")
    assert code == 4, err
    assert "lost contact with gpu1: no answer within 10s" in err
    assert "error: gpu1: its last lines are missing" in err and "gpu0" not in err


def test_logs_that_are_followed_leave_the_log_to_the_process_that_takes_care_of_the_run(
    fake_cluster: Callable[..., FakeCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a recorder that has just started, which opens the log a moment later."""
    cluster = fake_cluster("gpu0")
    folder = run_folder(cluster.launch("--detach")[1].strip())
    stores = []

    def open_the_log() -> None:
        stores.append(LogStore.acquire(folder.logs, pytest.fail))
        cluster.nodes[0].say("hello", 0)
        cluster.nodes[0].end(0)

    while_followed(monkeypatch, open_the_log)
    with locked(folder.attempt_lock(1)):
        code, out, err = cluster.ddpctl("logs", "-f")
    assert (code, out) == (0, "[gpu0:0] hello\n"), err
    [store] = stores
    assert store
    store.close()


@pytest.mark.parametrize("command", ["logs", "fetch", "attach"])
def test_lines_are_copied_by_the_process_that_takes_care_of_the_run(
    fake_cluster: Callable[..., FakeCluster], command: str
) -> None:
    """A command that copies them meanwhile would keep the log from it, for long if a host is slow."""
    cluster = fake_cluster("gpu0")
    folder = run_folder(cluster.launch("--detach")[1].strip())
    cluster.nodes[0].say("hello", 0)
    cluster.nodes[0].end(0)
    with locked(folder.attempt_lock(1)):
        assert cluster.ddpctl(command)[0] == 0
    assert known_marks(folder.logs) == {}
    assert cluster.ddpctl("logs")[1] == "[gpu0:0] hello\n"


def test_nothing_is_missing_once_a_host_is_back(
    fake_cluster: Callable[..., FakeCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster("gpu0", "gpu1")
    assert cluster.launch("--detach")[0] == 0
    gpu1 = cluster.hosts["gpu1"]
    while_followed(monkeypatch, lambda: setattr(gpu1, "reachable", False))
    say = Console.say

    def bring_back(console: Console, text: str, *rest: Any, **how: Any) -> None:
        say(console, text, *rest, **how)
        if text.startswith("lost contact"):
            gpu1.reachable = True
        if "contact restored" in text:
            for node in cluster.nodes:
                node.say("hello", node.node_rank)
                node.end(0)

    monkeypatch.setattr(Console, "say", bring_back)
    code, out, err = cluster.ddpctl("logs", "-f")
    assert code == 0 and "gpu1: contact restored" in err, err
    assert sorted(out.splitlines()) == ["[gpu0:0] hello", "[gpu1:1] hello"]


def test_lines_that_a_full_disk_has_cut_off_here_are_recorded_once(
    fake_cluster: Callable[..., FakeCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command follows the run, but leaves the rest of the log to the next command."""
    cluster = fake_cluster("gpu0")
    assert cluster.launch("--detach")[0] == 0
    [node] = cluster.nodes
    node.say("one", 0)
    append = NodeLog.append

    def fill_the_disk(log: NodeLog, entries: Sequence[LogEntry], attempt: int) -> None:
        monkeypatch.setattr(NodeLog, "append", append)
        log._log.write(b"[gpu0:0] on")
        log._log.flush()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def end() -> None:
        node.say("two", 0)
        node.end(0)

    monkeypatch.setattr(NodeLog, "append", fill_the_disk)
    while_followed(monkeypatch, end)
    code, out, err = cluster.ddpctl("logs", "-f")
    assert code == 4 and "gpu0: its log was not copied: cannot write" in err, err
    assert out == "[gpu0:0] one\n[gpu0:0] two\n"
    assert cluster.ddpctl("logs")[1] == out
