"""The tables of `ps --watch` on a narrow terminal."""

from __future__ import annotations

import pytest

from launcher.look.ps import RUN_HEAD, fitting

ROW = "20261121-053000-abcd|RUNNING|1|64/64|me|11-22T10:34Z|epoch 3/10  step 120/400|gpu[1-64]"


@pytest.mark.parametrize(
    ("columns", "left_out"),
    [(110, ""), (100, "ATTEMPT"), (90, "ATTEMPT OWNER"), (80, "ATTEMPT OWNER SINCE")],
)
def test_a_narrow_table_leaves_out_columns_and_cuts_no_cell(columns: int, left_out: str) -> None:
    head, row = fitting([ROW.split("|")], RUN_HEAD, columns).splitlines()
    assert head.split() == [name for name in RUN_HEAD if name not in left_out.split()]
    assert row.endswith("epoch 3/10  step 120/400  gpu[1-64]") and len(row) < columns
