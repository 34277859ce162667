"""A check of hosts that fail, and of users who do not wait."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
from fakes import FakeCluster, FakeDocker, FakeNode

from launcher.errors import HostUnreachable


def test_a_host_lost_during_a_call_to_its_engine_is_unreachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FakeCluster(tmp_path, monkeypatch, ["gpu0"])

    def lost(api: FakeDocker, _name: str) -> None:
        raise HostUnreachable("the connection broke", "check the network", host=api.name)

    monkeypatch.setattr(FakeDocker, "inspect_image", lost)
    code, out, _ = cluster.ddpctl("check", cluster.hosts_file)
    assert (code, "failure: gpu0: ssh: the connection broke" in out) == (4, True), out


def test_an_interrupted_check_leaves_no_container_and_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FakeCluster(tmp_path, monkeypatch, ["gpu0"])
    gpu0 = cluster.hosts["gpu0"]

    def interrupt(node: FakeNode) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(1.0)  # the container runs on for a moment
        node.ended.set()

    gpu0.on_start = interrupt
    code, _, err = cluster.ddpctl("check", cluster.hosts_file)
    assert (code, gpu0.count("start")) == (130, 1), err
    assert "ddpctl: warning: waiting up to 25 s for the test containers, to remove them" in err
    assert not gpu0.nodes
    assert not list(gpu0.home.glob(".ddpctl/check-*"))


def test_no_container_is_tested_on_a_host_that_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FakeCluster(tmp_path, monkeypatch, ["gpu0"], mounts=["/no/such/folder:/x"])
    cluster.hosts["gpu0"].on_start = lambda node: node.ended.set()
    code, out, err = cluster.ddpctl("check", cluster.hosts_file)
    assert (code, cluster.hosts["gpu0"].count("start")) == (3, 0), err
    assert "failure: gpu0: disk: /no/such/folder" in out
