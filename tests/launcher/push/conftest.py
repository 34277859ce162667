from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from push_machines import Machine, home, machines, push_to

from launcher.push.push import PushResult

__all__ = ["home", "machines"]


@pytest.fixture(autouse=True)
def _own_home(home: Path) -> None:
    """Every push of a test has a launching machine of its own."""


@pytest.fixture
def pushes() -> Callable[..., PushResult]:
    """pushes(machines, dataset=..., workdir=...): one push of these."""

    def run(hosts: list[Machine], **job: str) -> PushResult:
        return push_to(hosts, **job)

    return run
