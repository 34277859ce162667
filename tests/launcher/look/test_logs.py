"""`logs`: this machine's copy is read only as far as somebody reads it."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes import FakeCluster

from launcher.follow.run_lines import RunLines
from launcher.logs.log_entry import parse
from launcher.logs.query import LogFilter
from launcher.logs.store import LogStore
from launcher.look import logs
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
    logs.print_recorded(folder, LogFilter(), RunLines(console), console)
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
        logs.print_recorded(folder, LogFilter(), RunLines(console), console, first)
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
