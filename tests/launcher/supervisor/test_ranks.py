"""How a rank ended, as the kernel shows it, and which of several was first."""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path
from subprocess import Popen

import pytest
from supervisors import spec, until

from launcher.logs.journal_reader import JournalReader
from launcher.logs.log_entry import output_in
from launcher.supervisor import rank_logs
from launcher.supervisor.journal import Journal
from launcher.supervisor.proc import end_with, proc_stat
from launcher.supervisor.rank_logs import RankLogs, Tail
from launcher.supervisor.ranks import Rank, Ranks
from launcher.supervisor.torchrun import failures

LINE = b"x" * 999 + b"\n"
OUTPUTS = Path(__file__).parents[1] / "diagnosis" / "outputs"


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    monkeypatch.setattr(os, "set_blocking", lambda *_: None)  # this process's own stdout
    monkeypatch.setattr(Journal, "_copy_to_engine_log", lambda *_: None)
    return Journal(str(tmp_path), "h")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("exit(7)", 7),
        ("exit(0)", 0),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("import ctypes; ctypes.string_at(0)", -signal.SIGSEGV),
    ],
)
def test_the_exit_code_is_read_before_the_parent_reaps(code: str, expected: int) -> None:
    with Popen([sys.executable, "-X", "faulthandler=0", "-c", code]) as process:
        rank = Rank(process.pid, 3, 1)
        until(lambda: rank.look(0.0) or not rank.alive, 30)
        assert rank.exit_code == expected
    gone = Rank(process.pid, 3, 1)
    gone.look(0.0)
    assert (gone.alive, gone.exit_code) == (False, None)


def test_a_rank_that_sigstop_holds_is_timed_from_the_first_look() -> None:
    with Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        rank = Rank(process.pid, 3, 1)
        rank.look(10.0)
        assert rank.stopped_since is None
        process.send_signal(signal.SIGSTOP)
        until(lambda: proc_stat(process.pid)[0] == "T", 10)
        rank.look(20.0)
        rank.look(25.0)
        assert rank.stopped_since == 20.0
        process.send_signal(signal.SIGCONT)
        until(lambda: proc_stat(process.pid)[0] != "T", 10)
        rank.look(30.0)
        assert rank.stopped_since is None
        process.kill()


def test_a_live_rank_counts_as_live_when_no_file_descriptor_is_free() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    rank = Rank(os.getpid(), 0, 0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            proc_stat(rank.pid)
        rank.look(1.0)
        assert rank.alive and rank.stopped_since is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("codes", "first"),
    [
        ([-signal.SIGTERM, -signal.SIGSEGV], 1),
        ([-signal.SIGTERM, None], 1),  # torchrun has reaped it
        ([None, 7], 1),  # the other may have succeeded
        ([0, -signal.SIGTERM], 1),
        ([-signal.SIGTERM, -signal.SIGTERM], 0),
        ([None, 0], None),
    ],
)
def test_of_ranks_that_exited_together_one_that_torchrun_did_not_terminate_is_first(
    codes: list[int | None], first: int | None
) -> None:
    ranks = Ranks(2)
    for number, code in enumerate(codes):
        ranks.by_local_rank[number] = rank = Rank(os.getpid(), number, number)
        rank.exited, rank.exit_code = 1.0, code
    found = ranks.first_failed()
    assert (found and found.rank) == first


def test_torchruns_summary_names_the_failed_ranks_the_first_failure_first() -> None:
    lines = (OUTPUTS / "torchrun-killed.txt").read_text().splitlines()
    [[rank, local_rank, exit_code, _], *_] = failures(lines)
    assert (rank, local_rank, exit_code) == (3, 1, -9)


def test_ranks_are_killed_before_the_engine_kills_their_supervisor() -> None:
    for stop_timeout in (0.5, 2, 4, 10, 60):
        assert 0 < spec(stop_timeout=stop_timeout).time_to_save() < stop_timeout


def test_a_recorded_exception_is_read_and_a_garbled_one_is_skipped(
    tmp_path: Path, journal: Journal
) -> None:
    folder = tmp_path / "ranks[1]" / "0"  # the user's home folder may have any name
    logs = RankLogs(spec(), journal, str(folder))
    error = folder / "none_x" / "attempt_0" / "1" / "error.json"
    error.parent.mkdir(parents=True)
    assert logs.error(1) == (None, None)
    error.write_text('{"message": {"message": "KeyError: 1", "extraInfo": {"py_callstack": "T"}}}')
    assert logs.error(1) == ("KeyError: 1", "T")
    error.write_text('{"message": "killed"}')
    assert logs.error(1) == ("killed", None)
    for garbled in ("", "[]", '{"message": 7}', '{"message": {"extraInfo": []}}'):
        error.write_text(garbled)
        assert logs.error(1) == (None, None)


def test_the_output_of_a_rank_that_fails_at_once_is_known_when_its_end_is_recorded(
    tmp_path: Path, journal: Journal
) -> None:
    """It may have started and exited since the supervisor last looked for files."""
    logs = RankLogs(spec(), journal, str(tmp_path / "0"))
    logs.copy_new()
    stderr = tmp_path / "0" / "none_x" / "attempt_0" / "1" / "stderr.log"
    stderr.parent.mkdir(parents=True)
    stderr.write_text("train.py: no such file\n")
    logs.drain(1)
    assert logs.last_lines(1) == ["train.py: no such file"]


def test_output_that_is_in_the_journal_is_freed_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, journal: Journal
) -> None:
    monkeypatch.setattr(rank_logs, "FREE_SIZE", 2 << 20)
    path = tmp_path / "stdout.log"
    with path.open("wb", buffering=0) as rank:
        rank.write(LINE * 3000)
        tail = Tail(str(path), b"0", journal)
        while tail.copy_new():
            pass
        kept = path.stat()
        assert kept.st_size == 3_000_000 and kept.st_blocks * 512 < 1_500_000
        rank.write(b"more\n")
        assert tail.copy_new() == 5
    journal.close()
    found = [
        line
        for output in output_in(JournalReader().feed((tmp_path / "journal").read_bytes()))
        for line in output.lines
    ]
    assert found == [LINE[:-1]] * 3000 + [b"more"]


def test_a_line_without_end_is_cut_so_that_memory_stays_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, journal: Journal
) -> None:
    monkeypatch.setattr(rank_logs, "LONGEST_LINE", 100)
    path = tmp_path / "stdout.log"
    tail = Tail(str(path), b"3", journal)
    with path.open("wb", buffering=0) as rank:
        for _ in range(50):
            rank.write(b"x" * 30)
            tail.copy_new()
        rank.write(b"end\nnext")
    tail.finish()
    journal.close()
    found = [
        line
        for output in output_in(JournalReader().feed((tmp_path / "journal").read_bytes()))
        for line in output.lines
    ]
    assert b"".join(found) == b"x" * 1500 + b"endnext"
    assert max(map(len, found)) == 120 and found[-2:] == [b"x" * 60 + b"end", b"next"]


def test_a_process_whose_parent_was_killed_before_it_could_notice_ends() -> None:
    process = Popen(["sleep", "60"], preexec_fn=lambda: end_with(1))  # its parent is another
    assert process.wait(10) == 1
