"""The values of the flags of `logs`."""

from __future__ import annotations

import time

import pytest

from launcher.commands.logs import since_time


def test_since_takes_a_duration_or_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    assert since_time("--since", "10m") == 400.0
    assert since_time("--since", "1970-01-01T00:10:00Z") == 600.0
