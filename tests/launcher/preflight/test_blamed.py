"""The hosts that this machine remembers as blamed for failures of runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.errors import StateError
from launcher.hosts import Host
from launcher.preflight.blamed import blame_of, clear_blame, remember_blame
from launcher.ssh.host_connection import HostConnection

HOSTS = ["gpu1", "gpu2", "fe80::1%eth0", "gpu4"]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "ddpctl"


def blamed() -> dict[str, str]:
    """What each blamed host is blamed for."""
    findings = blame_of([HostConnection(Host(host)) for host in [*HOSTS, *HOSTS]])
    return {finding.host: finding.what for finding in findings}


def test_a_host_is_blamed_until_it_is_cleared() -> None:
    remember_blame("r0", {"gpu1": "its GPU failed", "fe80::1%eth0": "it was lost"})
    remember_blame("r1", {"gpu1": "it was lost"})
    assert blamed()["gpu1"].startswith("run r1 has avoided it since 2")
    assert blamed()["gpu1"].endswith(": it was lost")
    assert [*blamed()] == ["gpu1", "fe80::1%eth0"]
    assert clear_blame("fe80::1%eth0") and not clear_blame("fe80::1%eth0")
    assert [*blamed()] == ["gpu1"]


def test_a_damaged_file_blames_nobody_and_a_name_is_never_a_path(state: Path) -> None:
    for host, text in {"gpu1": "7", "gpu2": '["r0"]', "gpu4": "\0"}.items():
        remember_blame("r0", {host: "its GPU failed"})
        (state / "blamed" / f"{host}.json").write_text(text)
    assert blamed() == {}
    (state / "run.json").touch()
    assert not clear_blame("../run")
    with pytest.raises(StateError, match="file name too long"):
        clear_blame("x" * 300)
