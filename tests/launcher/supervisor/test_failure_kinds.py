"""The table of failure kinds: complete, and the same in the docs."""

from __future__ import annotations

import pytest
from failure_kinds import PAGE, tables

from launcher.supervisor.error_texts import TABLE
from launcher.supervisor.failure_kinds import FailureKind


@pytest.mark.parametrize("table", tables().values())
def test_the_page_shows_the_tables(table: str) -> None:
    """Update them with `python scripts/failure_kinds.py`."""
    assert table in PAGE.read_text()


@pytest.mark.parametrize("kind", FailureKind)
def test_a_kind_has_a_meaning_and_is_found_by_its_value(kind: FailureKind) -> None:
    assert kind.meaning.endswith(".") and not kind.remedy.endswith(".")
    assert FailureKind.named(kind.value) is kind
    assert f"{kind}" == kind.value == kind


def test_a_kind_of_another_version_is_none() -> None:
    assert FailureKind.named("gremlins") is FailureKind.named(None) is FailureKind.named([]) is None


def test_the_specific_pattern_comes_before_the_general_one() -> None:
    def kind(line: str) -> str:
        return TABLE.match([line])[0]

    assert kind("RuntimeError: CUDA error: out of memory") == FailureKind.CUDA_OOM
    assert kind("OSError: [Errno 28] No space left on device") == FailureKind.DISK_FULL
    assert kind("all is well") == ""
