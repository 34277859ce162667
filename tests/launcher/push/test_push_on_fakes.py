"""A push on hosts that are folders, with engines kept in a dict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes import FakeCluster, FakeDocker

from launcher.errors import CommandTimeout

inspect = FakeDocker.inspect_image


def test_no_host_pulls_an_image_because_the_engine_here_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    code, _, err = cluster.ddpctl("push", cluster.hosts_file, "--image")
    assert (code, "local: Docker did not answer" in err) == (4, True), err
