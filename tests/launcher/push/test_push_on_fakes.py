"""A push on hosts that are folders, with engines kept in a dict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fakes import IMAGE, FakeCluster, FakeDocker, FakeHost

from launcher.errors import CommandTimeout, HostUnreachable
from launcher.push import sender
from launcher.push.files.push_tree import RECEIVE
from launcher.ssh import recently_silent

inspect = FakeDocker.inspect_image


@pytest.mark.parametrize("command", [("push", "--image"), ("launch", "--detach")])
def test_no_host_pulls_an_image_because_the_engine_here_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, str]
) -> None:
    """The image of that name in a registry may be another one."""
    cluster = FakeCluster(tmp_path, monkeypatch, ["gpu0"])

    def slow(api: FakeDocker, name: str) -> dict[str, Any]:
        if api.name == "local":
            raise CommandTimeout(
                "Docker did not answer", "check whether dockerd hangs", host="local"
            )
        return inspect(api, name)

    monkeypatch.setattr(FakeDocker, "inspect_image", slow)
    code, _, err = cluster.ddpctl(command[0], cluster.hosts_file, command[1])
    assert (code, "local: Docker did not answer" in err) == (4, True), err


def with_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """Two hosts that get code."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("pass")
    return FakeCluster(
        tmp_path / "cluster", monkeypatch, ["gpu0", "gpu1"], workdir=str(tmp_path / "code")
    )


def lose_connection(host: FakeHost, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Lose the connection to the host whenever files are sent, so many times."""
    ask, left = host.ask, iter(range(times))

    def drop(*call: str) -> None:
        if any(RECEIVE in word for word in call) and next(left, None) is not None:
            raise HostUnreachable("the connection was lost", host=host.name)
        ask(*call)

    monkeypatch.setattr(host, "ask", drop)


@pytest.mark.parametrize("drops, code", [(1, 0), (3, 0), (9, 4)])
def test_a_push_whose_connection_is_lost_goes_on_some_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drops: int, code: int
) -> None:
    monkeypatch.setattr(sender, "PAUSES", (0.0,) * 3)
    cluster = with_code(tmp_path, monkeypatch)
    host = cluster.hosts["gpu1"]
    lose_connection(host, monkeypatch, drops)
    dialed_again: list[str] = []
    monkeypatch.setattr(recently_silent, "forget", lambda host: dialed_again.append(host.name))
    done, _, err = cluster.ddpctl("push", cluster.hosts_file, "--workdir")
    assert done == code, err
    assert "gpu1: the connection was lost; the push resumes" in err
    assert dialed_again == ["gpu1"] * min(drops, 3), "each try may dial"
    assert bool(list(host.home.glob(".ddpctl/workdirs/*/train.py"))) is (code == 0)


def test_what_an_earlier_try_has_sent_is_reported_as_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "PAUSES", (0.0,))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("x")
    (tmp_path / "train.py").write_text("pass")
    job = {"dataset": str(tmp_path / "data"), "workdir": str(tmp_path)}
    cluster = FakeCluster(tmp_path / "cluster", monkeypatch, ["gpu0"], **job)
    ask, lost = cluster.hosts["gpu0"].ask, iter([True])

    def drop(*call: str) -> None:
        if any(RECEIVE in word for word in call) and "workdirs" in call and next(lost, False):
            raise HostUnreachable("the connection was lost", host="gpu0")
        ask(*call)

    monkeypatch.setattr(cluster.hosts["gpu0"], "ask", drop)
    code, out, err = cluster.ddpctl("push", cluster.hosts_file, "--dataset", "--workdir", "--json")
    assert code == 0, err
    [host] = json.loads(out)["hosts"]
    assert (host["dataset"], host["workdir"], host["files_skipped"]) == ("sent", "sent", 0)


@pytest.mark.parametrize("flags", [(), ("--no-push",), ("--no-check",)])
def test_a_launch_asks_each_engine_once_for_the_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    cluster = FakeCluster(tmp_path, monkeypatch, ["gpu0", "gpu1"])
    cluster.nodes_end(exit_code=0)
    code, _, err = cluster.ddpctl("launch", cluster.hosts_file, *flags)
    assert code == 0, err
    asked = {host.name: host.count("inspect_image") for host in (*cluster, cluster.local)}
    assert asked == {"gpu0": 1, "gpu1": 1, "local": 1}
    assert cluster.record["image_digest"] == IMAGE["Id"]


def test_a_host_whose_push_is_retried_is_asked_again_for_the_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its engine may have restarted meanwhile."""
    monkeypatch.setattr(sender, "PAUSES", (0.0,))
    cluster = with_code(tmp_path, monkeypatch)
    cluster.nodes_end(exit_code=0)
    lose_connection(cluster.hosts["gpu1"], monkeypatch, times=1)
    code, _, err = cluster.ddpctl("launch", cluster.hosts_file)
    assert code == 0, err
    assert [each.count("inspect_image") for each in cluster] == [1, 2]
