"""The table of failure kinds: complete, and the same in the docs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from failure_kinds import PAGE, tables

from launcher.supervisor import failure_kinds as module
from launcher.supervisor.classify import WEIGHTS
from launcher.supervisor.failure_kinds import ERROR_TEXTS, KINDS, FailureKind, meaning_of


@pytest.mark.parametrize("table", tables().values())
def test_the_page_shows_the_tables(table: str) -> None:
    """Update them with `python scripts/failure_kinds.py`."""
    assert table in PAGE.read_text()


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_a_kind_has_a_meaning(kind: FailureKind) -> None:
    assert kind.meaning.endswith(".") and not kind.remedy.endswith(".")


def test_a_text_over_several_lines_is_joined_and_comments_are_left_out() -> None:
    [kernel] = [text for text in ERROR_TEXTS if "unsupported display driver" in repr(text.phrases)]
    assert kernel.phrases[1:3] == (
        "driver on your system is too old",
        "forward compatibility was attempted on non supported HW",
    )
    assert KINDS["shm-full"].remedy.endswith("raise job.shm_size, or use fewer DataLoader workers")
    assert KINDS["library"].remedy.endswith("in matching versions, in the image")
    assert "#" not in "".join(KINDS)


def test_what_an_error_text_or_a_reason_to_stop_means_is_a_kind() -> None:
    assert {text.kind for text in ERROR_TEXTS} | set(WEIGHTS) <= set(KINDS)


def test_the_specific_pattern_comes_before_the_general_one() -> None:
    def kind(line: str) -> str:
        return meaning_of([line])[0]

    assert kind("RuntimeError: CUDA error: out of memory") == "cuda-oom"
    assert kind("OSError: [Errno 28] No space left on device") == "disk-full"
    assert kind("all is well") == ""


def test_the_tables_are_found_by_pythons_that_name_no_package_during_an_import_from_a_zip() -> None:
    """Python 3.8 and 3.9 set `__package__` only after the import."""
    names: dict[str, Any] = {"__name__": module.__name__, "__package__": None}
    exec(Path(module.__file__).read_text(), names)
    assert [*names["KINDS"]] == [*KINDS]
