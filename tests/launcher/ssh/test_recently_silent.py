"""A host that does not answer is dialed once per command, not once per question."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes import FakeCluster

from launcher.errors import HostUnreachable
from launcher.hosts import Host
from launcher.ssh import recently_silent
from launcher.ssh.connect import connect, connect_early
from launcher.ssh.host_connection import HostConnection
from launcher.ssh.link import Dropped


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """Three hosts with a live run."""
    cluster = FakeCluster(tmp_path / "cluster", monkeypatch, ["gpu0", "gpu1", "gpu2"])
    cluster.launch("--detach")
    return cluster


@pytest.mark.parametrize(
    "words",
    ["ps hosts.yaml --all", "logs", "logs hosts.yaml", "kill hosts.yaml --all -y", "fetch"],
)
def test_a_command_dials_a_silent_host_once(
    words: str, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    dials = cluster.silence(monkeypatch, "gpu1")
    code, out, err = cluster.ddpctl(*words.split())
    assert code, "a host was silent"
    assert "gpu1: " in out + err
    assert dials == ["gpu1"], err


def test_neither_ps_nor_kill_dials_a_silent_host_for_its_pending_stop_and_then_again(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    dials = cluster.silence(monkeypatch, "gpu1")
    assert cluster.ddpctl("kill", cluster.record["run_id"])[0] == 6
    assert cluster.record["pending_stop"] == ["gpu1"]
    for words in ("ps hosts.yaml", "kill hosts.yaml", "launch hosts.yaml", "resume hosts.yaml"):
        monkeypatch.setattr(recently_silent, "_silent", {})
        dials.clear()
        cluster.ddpctl(*words.split())
        assert dials == ["gpu1"], words


def test_a_host_is_dialed_again_after_as_long_as_the_dial_that_failed_took(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    dials = cluster.silence(monkeypatch, "gpu1")
    connection = HostConnection(Host("gpu1"))
    now = [1000.0]
    monkeypatch.setattr(recently_silent, "time", SimpleNamespace(monotonic=lambda: now[0]))
    for seconds, dialed in ((0.0, 1), (59.0, 1), (2.0, 2), (59.0, 2)):
        now[0] += seconds
        with pytest.raises(HostUnreachable, match="gpu1: no answer within 10s; is it up"):
            connection.run(["true"])
        assert len(dials) == dialed


def test_a_host_that_has_answered_in_the_meantime_is_not_silent(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host("gpu1")
    cluster.silence(monkeypatch, "gpu1")
    with pytest.raises(HostUnreachable):
        connect(host, 10.0)
    monkeypatch.setattr("launcher.ssh.connect._connect", lambda route: "connection")
    connect_early([host])  # it always dials
    assert [connect(host, 10.0) for _ in range(2)] == ["connection"] * 2


def test_a_host_that_refuses_at_once_is_dialed_again() -> None:
    host = Host("gpu1")
    recently_silent.remember(host, HostUnreachable("connection refused"), seconds=4.9)
    recently_silent.raise_if_silent(host)
    recently_silent.remember(host, HostUnreachable("no answer"), seconds=5.0)
    with pytest.raises(HostUnreachable, match="no answer"):
        recently_silent.raise_if_silent(host)
    recently_silent.forget(host)


def test_a_host_whose_busy_sshd_drops_logins_is_dialed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with MaxStartups, which drops some logins at random. The tries take 8 s."""
    dials = []

    def drop(route: SimpleNamespace) -> None:
        dials.append(route.host)
        raise Dropped("no banner")

    clock = SimpleNamespace(monotonic=itertools.count(step=8).__next__, sleep=lambda _: None)
    monkeypatch.setattr("launcher.ssh.connect.time", clock)
    monkeypatch.setattr(
        "launcher.ssh.connect.route_to", lambda host, _: SimpleNamespace(host=host, at="")
    )
    monkeypatch.setattr("launcher.ssh.connect._try_to_connect", drop)
    for _ in range(2):
        with pytest.raises(HostUnreachable, match="closed the connection 6 times"):
            connect(Host("gpu1"), 10.0)
    assert len(dials) == 12
