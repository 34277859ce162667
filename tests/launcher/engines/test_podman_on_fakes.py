"""Runs on engines that answer as Podman does."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import FakeCluster, FakeNode

from launcher.engines.docker import Docker
from launcher.engines.status import NodeStatus
from launcher.hosts import Host
from launcher.ssh.host_connection import HostConnection

ROOTLESS = {
    "BuildahVersion": "1.39.3",
    "ServerVersion": "5.4.2",
    "SecurityOptions": ["name=seccomp,profile=default", "name=rootless"],
}


def podman_hosts(folder: Path, monkeypatch: pytest.MonkeyPatch, **job: object) -> FakeCluster:
    cluster = FakeCluster(folder, monkeypatch, ["gpu0", "gpu1"], **job)
    cluster.hosts["gpu1"].lies["info"] = ROOTLESS
    cluster.nodes_end(0)
    return cluster


def launched_on_podman(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[FakeCluster, Docker, NodeStatus]:
    """A finished run, the engine of its Podman host, and the node there."""
    cluster = podman_hosts(folder, monkeypatch)
    assert cluster.launch()[0] == 0
    engine = Docker(HostConnection(Host("gpu1")))
    [status] = engine.nodes()
    return cluster, engine, status


def test_docker_and_rootless_podman_serve_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = podman_hosts(tmp_path, monkeypatch, user="1000:1000")
    code, _, err = cluster.launch()
    assert code == 0, err
    assert [node.arguments["user"] for node in cluster.nodes] == ["1000:1000", "0:0"]


def test_a_container_that_a_reboot_ended_has_not_succeeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = podman_hosts(tmp_path, monkeypatch)
    host = cluster.hosts["gpu1"]

    def reboot(node: FakeNode) -> None:
        state = {"Status": "exited", "ExitCode": 0, "FinishedAt": "0001-01-01T00:00:00Z"}
        host.lies["inspect_container"] = {**node.inspected, "State": state}
        node.ended.set()

    host.on_start = reboot
    code, _, err = cluster.launch()
    assert code == 1, err
    assert cluster.record["attempts"][-1]["state"] == "FAILED"


def test_a_folder_of_job_mounts_that_podman_would_make_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = podman_hosts(tmp_path, monkeypatch, mounts=[f"{tmp_path}/none:/in"])
    code, _, err = cluster.launch()
    assert code == 1
    assert f"gpu1: could not create the container: {tmp_path}/none does not exist; create it" in err
    assert cluster.hosts["gpu1"].count("create") == 0


def test_a_running_container_that_podman_does_not_remove_keeps_its_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, engine, status = launched_on_podman(tmp_path, monkeypatch)
    words = "cannot remove container as it is running: container state improper"
    cluster.hosts["gpu1"].refuses["remove"] = words
    assert engine.withdraw(status) is False


def test_a_container_that_has_gone_meanwhile_has_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, engine, status = launched_on_podman(tmp_path, monkeypatch)
    engine.remove(status)
    engine.stop(status, timeout=1.0)
