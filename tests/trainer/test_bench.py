"""benchmarks/modes.py: the table of modes, from real short trainings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import results
from benchmarks.modes import (
    Result,
    Row,
    main,
    measured,
    mode_rows,
    table,
    technique_rows,
    with_global_batch,
)
from trainer.config import Config
from trainer.errors import TrainerError

TINY = (
    *("--data", "synthetic", "--synthetic-train", "256", "--synthetic-test", "64"),
    *("--model", "resnet8", "--width", "8", "--epochs", "1", "--global-batch", "64"),
    *("--device", "cpu"),
)


def test_a_new_section_replaces_its_former_one_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = "# Results\n\nSome of this ran on a GPU.\n"
    monkeypatch.setattr(results, "PATH", tmp_path / "RESULTS.md")
    results.PATH.write_text(f"{head}\n## Check\n\nold\n\n## Push\n\nfast\n")
    results.write_section("Check", "make it", "new")
    text = results.PATH.read_text()
    assert text.startswith(f"{head}\n## Check\n") and text.endswith("new\n\n## Push\n\nfast\n")
    assert "old" not in text


def test_the_modes_are_those_of_published_recipes() -> None:
    rows = [(row.name, row.ranks, row.flags[1]) for row in mode_rows(4)]
    assert rows == [
        ("DP", 1, "off"),
        ("DDP", 4, "off"),
        ("DP+AMP", 1, "bf16"),
        ("DDP+AMP", 4, "bf16"),
    ]
    names = [row.name for row in technique_rows(1)]
    assert names == ["fp32", "+ bf16", "+ channels_last", "+ compile", "+ CUDA graphs"]


def test_all_rows_have_the_same_global_batch() -> None:
    assert with_global_batch(Config(batch_size=32), ranks=4) == Config(global_batch=128)
    assert with_global_batch(Config(global_batch=64), ranks=4) == Config(global_batch=64)
    assert with_global_batch(Config(), ranks=2) == Config(global_batch=256)


def test_scaling_trains_with_each_number_of_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "--scaling", "1,2", *TINY]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["name"], row["ranks"]) for row in rows] == [("1 rank(s)", 1), ("2 rank(s)", 2)]
    assert all(row["images_per_second"] > 0 and 0 <= row["top1"] <= 1 for row in rows)


def test_a_failing_mode_reports_the_reason() -> None:
    with pytest.raises(TrainerError, match=r"DP: exit code 3: .*/nowhere: no such folder"):
        main([*TINY, "--data", "/nowhere"])


def test_the_median_interval_counts() -> None:
    lines = [
        {"kind": "start", "global_batch": 100, "steps_per_epoch": 10},
        *({"kind": "train", "img_s": speed} for speed in (10.0, 500.0, 520.0)),
        {"kind": "eval", "top1": 0.5},
    ]
    assert measured(Row("x", 1, ()), lines) == Result("x", 1, 2.0, 500.0, 0.5)


def test_the_table_compares_with_its_first_row() -> None:
    lines = table([Result("DP", 1, 20.0, 100.0, 0.9), Result("DDP", 2, 10.0, 180.0, 0.905)])
    assert lines.splitlines()[2].split() == [*("DDP", "2", "10.00", "180", "1.80", "90%", "90.50%")]
