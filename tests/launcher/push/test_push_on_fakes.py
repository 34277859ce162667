"""A push on hosts that are folders, with engines kept in a dict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes import FakeCluster, FakeDocker

from launcher.errors import CommandTimeout, HostUnreachable
from launcher.push import push as pushing
from launcher.push.files.push_tree import RECEIVE

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


@pytest.mark.parametrize("drops, code", [(1, 0), (3, 0), (9, 4)])
def test_a_push_whose_connection_is_lost_goes_on_some_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drops: int, code: int
) -> None:
    monkeypatch.setattr(pushing, "PAUSES", (0.0,) * 3)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("pass")
    cluster = FakeCluster(
        tmp_path / "cluster", monkeypatch, ["gpu0", "gpu1"], workdir=str(tmp_path / "code")
    )
    host = cluster.hosts["gpu1"]
    ask, left = host.ask, iter(range(drops))

    def drop(*call: str) -> None:
        if any(RECEIVE in word for word in call) and next(left, None) is not None:
            raise HostUnreachable("the connection was lost", host="gpu1")
        ask(*call)

    monkeypatch.setattr(host, "ask", drop)
    done, _, err = cluster.ddpctl("push", cluster.hosts_file, "--workdir")
    assert done == code, err
    assert "gpu1: the connection was lost; the push resumes" in err
    assert bool(list(host.home.glob(".ddpctl/workdirs/*/train.py"))) is (code == 0)
