from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fakes import FakeCluster


@pytest.fixture
def fake_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeCluster]:
    """fake_cluster("gpu0", "gpu1", max_restarts=1): hosts, and keys of the job."""

    def make(*names: str, **job: object) -> FakeCluster:
        return FakeCluster(tmp_path / "cluster", monkeypatch, names or ("gpu0", "gpu1"), **job)

    return make
