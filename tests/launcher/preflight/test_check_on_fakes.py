"""A check of hosts that fail, and of users who do not wait."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from fakes import FakeCluster, FakeDocker

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


def test_an_interrupted_check_ends_before_its_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FakeCluster(tmp_path, monkeypatch, ["gpu0"])
    gpu0 = cluster.hosts["gpu0"]
    gpu0.on_start = lambda node: os.kill(os.getpid(), signal.SIGINT)
    code, _, err = cluster.ddpctl("check", cluster.hosts_file)
    assert (code, gpu0.count("start")) == (130, 1), err
    [container] = gpu0.nodes.values()
    assert not container.ended.is_set()
    container.ended.set()  # for the thread that still waits for it


def test_no_container_is_tested_on_a_host_that_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FakeCluster(tmp_path, monkeypatch, ["gpu0"], mounts=["/no/such/folder:/x"])
    cluster.hosts["gpu0"].on_start = lambda node: node.ended.set()
    code, out, err = cluster.ddpctl("check", cluster.hosts_file)
    assert (code, cluster.hosts["gpu0"].count("start")) == (3, 0), err
    assert "failure: gpu0: disk: /no/such/folder" in out
