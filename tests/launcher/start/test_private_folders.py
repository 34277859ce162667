"""What a launch leaves on a host: other users of that host cannot read it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator

import pytest
from fakes import FakeCluster

Make = Callable[..., FakeCluster]


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
@pytest.mark.parametrize("flags", [["--no-push"], []], ids=["without a push", "with a push"])
def test_only_the_account_enters_its_folder_on_a_host(fake_cluster: Make, flags: list[str]) -> None:
    cluster = fake_cluster()
    workdir = cluster.folder / "code"
    workdir.mkdir()
    (workdir / "token").write_text("secret")
    (workdir / "token").chmod(0o600)
    flags = flags or ["--workdir", str(workdir)]
    cluster.nodes_end(exit_code=0)
    code, _, err = cluster.ddpctl("launch", cluster.hosts_file, "--no-check", *flags)
    assert code == 0, err
    for host in cluster:
        home = host.home / ".ddpctl"
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
        [control, *_] = home.glob("runs/*/nodes/*/attempt-1")
        assert stat.S_IMODE((control / "spec.json").stat().st_mode) == 0o600
