"""The rank that missed a collective, from real dumps of torch's flight recorder."""

from __future__ import annotations

from pathlib import Path

import pytest
from supervisors import Attempt

RANK_2_IS_BUSY = """
import datetime, sys, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=int(sys.argv[1])))
ones = torch.ones(4)
for _ in range(5):
    dist.all_reduce(ones)
if dist.get_rank() == 2:
    time.sleep(600)
dist.all_reduce(ones)
"""


@pytest.mark.real
@pytest.mark.parametrize(
    ("timeout", "hang_timeout", "kind"), [(8, None, "collective-timeout"), (600, 10.0, "hung")]
)
def test_the_rank_that_missed_a_collective_is_named(
    tmp_path: Path, timeout: int, hang_timeout: float | None, kind: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(RANK_2_IS_BUSY)
    attempt = Attempt(tmp_path, script=script)
    attempt.add(2, [str(timeout)], hang_timeout=hang_timeout)
    try:
        attempt.start()
        attempt.wait()
        cause = attempt.cause()
    finally:
        attempt.close()
    assert cause and cause.kind == kind
    assert "rank 2 (gpu2) did not call all_reduce, in which rank" in cause.message, cause
    assert "(call 6 of their process group)" in cause.message
