"""Whenever a command asks a host for something, a step says so after two seconds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fakes import FakeCluster, FakeHost

from launcher.follow.session import Session
from launcher.start.run_attempt import where_time_went
from launcher.terminal.console import Console

Make = Callable[..., FakeCluster]


@pytest.fixture
def unannounced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What hosts were asked outside of a step. Following a run shows its lines, so it needs none."""
    asked: list[tuple[str, ...]] = []
    depth = [0]

    def inside(real: Any) -> Any:
        def call(self: Any, *args: Any) -> Any:
            depth[0] += 1
            try:
                return real(self, *args)
            finally:
                depth[0] -= 1

        return call

    real_step, real_ask = Console.step, FakeHost.ask

    @contextlib.contextmanager
    def step(self: Console, text: str) -> Iterator[None]:
        with real_step(self, text):
            depth[0] += 1
            try:
                yield
            finally:
                depth[0] -= 1

    def ask(self: FakeHost, *call: str) -> None:
        if depth[0] == 0:
            asked.append((self.name, *call))
        real_ask(self, *call)

    monkeypatch.setattr(Console, "step", step)
    monkeypatch.setattr(Session, "to_the_end", inside(Session.to_the_end))
    monkeypatch.setattr(FakeHost, "ask", ask)
    return asked


@pytest.mark.slow
def test_every_question_to_a_host_is_in_a_step(
    fake_cluster: Make, unannounced: list[tuple[str, ...]]
) -> None:
    cluster = fake_cluster()
    hosts = cluster.hosts_file

    def run(*argv: str, code: int = 0) -> None:
        got, _, err = cluster.ddpctl(*argv)
        assert got == code, err
        assert unannounced == [], argv

    cluster.nodes_end(1)
    run("launch", hosts, "--no-check", "--no-push", code=1)
    for host in cluster:
        host.on_start = lambda node: None
    run("resume", "--detach")
    run("ps", hosts, "--all")
    run("logs")
    run("exec", "--", "true")
    run("fetch")
    run("report", "-o", str(cluster.folder / "report.html"))
    cluster.hosts["gpu1"].reachable = False
    run("kill", code=6)
    cluster.hosts["gpu1"].reachable = True
    run("kill", hosts, "--strays")
    run("ps", hosts)  # which finishes the stop on gpu1
    run("attach", code=7)
    run("launch", hosts, "--no-check", "--no-push", "--detach")
    cluster.forget()
    run("logs", "--hosts", hosts)
    run("kill", hosts, "--all", "-y")
    run("clean", hosts, "-y")


def test_a_step_that_takes_no_time_is_not_in_the_sum() -> None:
    steps = [("checking 2 hosts", 2.0), ("claiming the attempt", 0.01), ("starting 2 nodes", 1.0)]
    assert where_time_went(steps) == "took 3.0 s: checking 2 hosts 2.0 s, starting 2 nodes 1.0 s"


def test_the_unconfirmed_stop_that_a_command_finishes_is_announced(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.terminal.console.QUIET_BEFORE", 0.0)
    cluster = fake_cluster()
    run_id = cluster.launch("--detach")[1].strip()
    cluster.hosts["gpu1"].reachable = False
    assert cluster.ddpctl("kill")[0] == 6
    cluster.hosts["gpu1"].reachable = True
    cluster.hosts["gpu1"].on_stop = lambda node: (time.sleep(0.1), node.stop())
    code, _, err = cluster.ddpctl("ps", cluster.hosts_file)
    assert code == 0
    assert f"ddpctl: stopping {run_id} on gpu1 ...\n" in err
