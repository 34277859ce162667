"""What a launch leaves on a host: other users of that host cannot read it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fakes import FakeCluster

from launcher.hosts import Host
from launcher.plan.supervisor_spec import BUNDLE
from launcher.push.files.tar import archive, small_file
from launcher.ssh.host_connection import HostConnection
from launcher.start.fill_node_folders import PREPARE

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


@pytest.mark.parametrize(
    ("uid", "mode"),
    [("", 0o755), ("0", 0o755), (str(os.getuid()), 0o755), (str(os.getuid() + 1), 0o777)],
    ids=["not set", "root", "the SSH user", "another user"],
)
def test_a_containers_user_can_write_to_its_folders(tmp_path: Path, uid: str, mode: int) -> None:
    control = str(tmp_path / "run" / "nodes" / "0" / "attempt-1")
    files = b"".join(archive(small_file(name, b"x", 0o600) for name in ("spec.json", BUNDLE)))
    arguments = [str(tmp_path / "run"), control, "", uid, "", ""]
    done = HostConnection(Host("local")).script(PREPARE, *arguments, stdin=files)
    assert done.code == 0, done.reason
    assert stat.S_IMODE((tmp_path / "run" / "checkpoints").stat().st_mode) == mode
