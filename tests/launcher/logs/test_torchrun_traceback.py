"""torchrun's own report is left out; every other line stays, in order."""

from __future__ import annotations

from launcher.logs.torchrun_traceback import TorchrunTracebacks

TRACEBACK = b"""[gpu0] Traceback (most recent call last):
[gpu0]   File "/usr/local/bin/torchrun", line 8, in <module>
[gpu0]     sys.exit(main())
"""
REPORT = (
    TRACEBACK
    + b"""[gpu0] torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\x20
[gpu0] ======================================================
[gpu0] train.py FAILED
[gpu0] ------------------------------------------------------
[gpu0] Failures:
[gpu0]   <NO_OTHER_FAILURES>
[gpu0] ======================================================
"""
)
RANK = b"[gpu0:1] Traceback (most recent call last):\n[gpu0:1] ValueError: boom\n"


def test_a_report_is_left_out_in_whichever_pieces_it_comes() -> None:
    lines = (REPORT + b"[gpu0] after\n").splitlines(keepends=True)
    fold = TorchrunTracebacks()
    assert b"".join(fold.feed(0, line) for line in lines) == b"[gpu0] after\n"
    assert fold.left_out == {0}
    assert fold.take_held() == b""


def test_lines_of_ranks_stay_even_between_those_of_the_report() -> None:
    fold = TorchrunTracebacks()
    text = TRACEBACK + RANK + REPORT[len(TRACEBACK) :] + RANK
    assert fold.feed(0, text) == RANK + RANK


def test_nodes_of_one_host_name_are_told_apart() -> None:
    fold = TorchrunTracebacks()
    assert fold.feed(0, TRACEBACK) == b""
    assert fold.feed(1, b"[gpu0] a line\n") == b"[gpu0] a line\n"
    assert fold.feed(0, REPORT[len(TRACEBACK) :]) == b""
    assert fold.left_out == {0}


def test_another_traceback_of_torchrun_is_shown_whole() -> None:
    fold = TorchrunTracebacks()
    other = TRACEBACK + b"[gpu0] torch.distributed.DistNetworkError: port in use\n"
    assert fold.feed(0, other + other) == other + other
    assert not fold.left_out


def test_a_traceback_without_an_end_is_shown_at_the_end() -> None:
    fold = TorchrunTracebacks()
    assert fold.feed(0, TRACEBACK) == b""
    assert fold.take_held() == TRACEBACK
