"""The hosts that this machine remembers as blamed for failures of runs."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from pathlib import Path

import pytest

from launcher.hosts import Host
from launcher.preflight import blamed
from launcher.preflight.blamed import blame_of, clear_blame, remember_blame
from launcher.ssh.host_connection import HostConnection

HOSTS = ["gpu1", "gpu2", "gpu3"]


def test_two_runs_that_blame_hosts_at_the_same_time_are_both_remembered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    remember_blame("r0", {"gpu1": "its GPU failed"})
    load = blamed._load

    def slow_load() -> dict[str, list[str]]:
        loaded = load()
        time.sleep(0.1)
        return loaded

    monkeypatch.setattr(blamed, "_load", slow_load)
    threads = [
        threading.Thread(target=remember_blame, args=("r1", {"gpu2": "its GPU failed"})),
        threading.Thread(target=remember_blame, args=("r2", {"gpu3": "its GPU failed"})),
        threading.Thread(target=clear_blame, args=("gpu1",)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    warnings = blame_of([HostConnection(Host(host)) for host in HOSTS])
    assert {warning.host for warning in warnings} == {"gpu2", "gpu3"}


def test_a_file_system_without_locks_does_not_stop_a_restart_from_blaming_a_host(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(fcntl, "flock", unsupported)
    remember_blame("r0", {"gpu1": "its GPU failed"})
    assert [warning.host for warning in blame_of([HostConnection(Host("gpu1"))])] == ["gpu1"]
    assert clear_blame("gpu1")
