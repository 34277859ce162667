"""A check of hosts that fail, and of users who do not wait."""

from __future__ import annotations

import os
import signal
import threading
import time
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


def test_hosts_that_share_a_home_do_not_remove_each_others_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FakeCluster(tmp_path, monkeypatch, ["gpu0", "gpu1"])
    cluster.share_home("gpu0", "gpu1")
    first, second = cluster
    begun = threading.Event()
    kept: list[bool] = []

    def start(node: FakeNode) -> None:
        begun.set()
        while first.nodes:  # until the container of gpu0 is removed
            time.sleep(0.01)
        kept.append(Path(node.mounts[0]["Source"]).is_dir())
        node.exit(0)

    first.on_start = lambda node: (begun.wait(), node.exit(0))
    second.on_start = start
    cluster.ddpctl("check", cluster.hosts_file)
    assert kept == [True]
