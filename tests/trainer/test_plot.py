"""trainer plot: a picture from metrics.jsonl, and what it says when there is none to draw."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer.errors import DataError
from trainer.tools.plot import columns, main, records

LINES = [
    {"kind": "start"},
    {"kind": "train", "step": 10, "loss": 2.0, "img_s": 100.0},
    {"kind": "eval", "step": 10, "loss": 1.9, "top1": 0.25},
    {"kind": "train", "step": 20, "loss": 1.0, "img_s": 120.0},
]


def write(folder: Path, text: str) -> Path:
    (folder / "metrics.jsonl").write_text(text)
    return folder


def test_curves_are_drawn_to_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write(tmp_path, "".join(json.dumps(line) + "\n" for line in LINES))
    assert main([str(tmp_path)]) == 0
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_columns_hold_the_steps_and_the_values() -> None:
    train = [line for line in LINES if line["kind"] == "train"]
    assert columns(train, "img_s") == ([10, 20], [100.0, 120.0])
    assert columns([LINES[2]], "top1", 100) == ([10], [25.0])


def test_a_half_written_last_line_is_left_out_and_a_damaged_one_is_not(tmp_path: Path) -> None:
    write(tmp_path, json.dumps(LINES[1]) + '\n{"kind": "tr')
    assert len(records(tmp_path / "metrics.jsonl")) == 1
    write(tmp_path, '{"kind": "tr\n' + json.dumps(LINES[1]) + "\n")
    with pytest.raises(DataError, match=r"metrics\.jsonl:1: not JSON"):
        records(tmp_path / "metrics.jsonl")


def test_nothing_to_draw(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="pass a run's output folder"):
        main([str(tmp_path)])
