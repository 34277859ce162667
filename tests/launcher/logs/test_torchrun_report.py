"""torchrun's own reports are hidden; every other line stays, in order."""

from __future__ import annotations

import pytest

from launcher.logs.log_entry import parse, render
from launcher.logs.torchrun_report import TorchrunReports

TRACEBACK = b"""[gpu0] Traceback (most recent call last):
[gpu0]   File "/usr/local/bin/torchrun", line 8, in <module>
[gpu0]     sys.exit(main())
"""
CHILD_FAILED = b"""[gpu0] torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\x20
[gpu0] ======================================================
[gpu0] train.py FAILED
[gpu0] ------------------------------------------------------
[gpu0] Failures:
[gpu0]   <NO_OTHER_FAILURES>
[gpu0] ======================================================
"""
STOPPED = (
    b"[gpu0] torch.distributed.elastic.multiprocessing.api.SignalException: "
    b"Process 2361 got signal: 15\n"
)
RANK = b"[gpu0:1] Traceback (most recent call last):\n[gpu0:1] ValueError: boom\n"


def shown(reports: TorchrunReports, text: bytes, node_rank: int = 0) -> bytes:
    return render(reports.feed(parse(text, node_rank, 1.0)))


@pytest.mark.parametrize("end", [CHILD_FAILED, STOPPED], ids=["failed", "stopped"])
def test_a_report_is_hidden_in_whichever_pieces_it_comes(end: bytes) -> None:
    lines = (TRACEBACK + end + b"[gpu0] after\n").splitlines(keepends=True)
    reports = TorchrunReports()
    assert b"".join(shown(reports, line) for line in lines) == b"[gpu0] after\n"
    assert reports.hidden_on == {0}
    assert render(reports.held) == b""


@pytest.mark.parametrize("end", [CHILD_FAILED, STOPPED], ids=["failed", "stopped"])
def test_lines_of_ranks_stay_even_between_those_of_the_report(end: bytes) -> None:
    reports = TorchrunReports()
    assert shown(reports, TRACEBACK + RANK + end + RANK) == RANK + RANK


HEAD = b"W1123 08:48:11.171000 2361 torch/distributed/elastic/multiprocessing/api.py:1028] "


@pytest.mark.parametrize(
    "line",
    [
        HEAD + b"Received 15 death signal, shutting down workers",
        HEAD + b"Received Signals.SIGTERM death signal, shutting down workers",
        HEAD + b"Sending process 2955 closing signal SIGTERM",
        HEAD + b"Closing process 2955 via signal SIGTERM",
        HEAD + b"failed (exitcode: -9) local_rank: 1 (pid: 2955) of binary: /usr/bin/python3",
        b"[2024-01-01 10:00:00,000] torch.distributed.elastic.multiprocessing.api: [WARNING] "
        b"Sending process 2955 closing signal SIGTERM",
        b"WARNING:torch.distributed.elastic.multiprocessing.api:"
        b"Sending process 2955 closing signal SIGTERM",
    ],
)
def test_lines_about_ending_ranks_are_hidden_unless_a_rank_wrote_them(line: bytes) -> None:
    reports = TorchrunReports()
    assert shown(reports, b"[gpu0] " + line + b"\n") == b""
    assert reports.hidden_on == {0}
    assert shown(reports, b"[gpu0:3] " + line + b"\n") == b"[gpu0:3] " + line + b"\n"


def test_other_warnings_of_torchrun_stay() -> None:
    reports = TorchrunReports()
    line = b"[gpu0] " + HEAD + b"Unable to shutdown process 2955 via SIGTERM, forcefully exiting\n"
    assert shown(reports, line) == line
    assert not reports.hidden_on


def test_nodes_on_one_host_are_told_apart() -> None:
    reports = TorchrunReports()
    assert shown(reports, TRACEBACK, node_rank=0) == b""
    assert shown(reports, b"[gpu0] a line\n", node_rank=1) == b"[gpu0] a line\n"
    assert shown(reports, CHILD_FAILED, node_rank=0) == b""
    assert reports.hidden_on == {0}


def test_another_traceback_of_torchrun_is_shown_whole() -> None:
    reports = TorchrunReports()
    other = TRACEBACK + b"[gpu0] torch.distributed.DistNetworkError: port in use\n"
    assert shown(reports, other + other) == other + other
    assert not reports.hidden_on


@pytest.mark.parametrize("first", [TRACEBACK, TRACEBACK[:-1] + b"x" * 9000 + b"\n"])
def test_a_traceback_with_a_very_long_line_is_not_held_back(first: bytes) -> None:
    """A host could fill the memory with it."""
    text = first + b"[gpu0]   " + b"y" * 9000 + b"\n"
    assert shown(TorchrunReports(), text) == text


def test_a_traceback_without_an_end_is_shown_at_the_end() -> None:
    reports = TorchrunReports()
    assert shown(reports, TRACEBACK) == b""
    assert render(reports.held) == TRACEBACK
