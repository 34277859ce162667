"""A run that its supervisors stopped at the time limit: cancelled, with its reason, exit code 7."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import run_record
from local_attempt import local_attempt

from launcher.follow.ctrl_c import Interrupts
from launcher.follow.hooks import EventHook
from launcher.follow.session import StartedRun, follow
from launcher.outcomes import Exit
from launcher.runs.run_folder import RunFolder
from launcher.terminal.console import Console

JOURNAL = b"""\
60.1\t!\t{"kind": "stopping", "reason": {"kind": "time-limit", "node_rank": 0, "host": "gpu1",\
 "message": "the run reached its time limit of 60 s", "time": 60.1}}
61.0\t0\tsaved
61.5\t!\t{"kind": "rank_exit", "rank": 0, "local_rank": 0, "exit_code": 1, "time": 61.5,\
 "stopping": true}
61.7\t!\t{"kind": "end", "state": "cancelled", "exit_code": 1}
"""


def test_the_time_limit_is_a_cancellation_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    record = run_record(run_id="run", engine="process", hosts=["local"])
    running = local_attempt(tmp_path, JOURNAL)
    with Interrupts() as interrupts:
        run = StartedRun(running, folder, record, clock_skews=[0.0])
        outcome = follow(run, EventHook(folder, None, Console()), interrupts, Console())
    assert outcome.exit is Exit.CANCELLED
    [saved] = folder.load().attempts
    assert saved.state == "CANCELLED" and saved.first_failure
    assert saved.first_failure.kind == "time-limit"
    said = capsys.readouterr().err
    assert "cancelled: local (node 0): the run reached its time limit of 60 s" in said
    assert "raise job.time_limit" in said
