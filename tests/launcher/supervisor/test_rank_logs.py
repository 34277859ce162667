"""A rank's own file: taken in whole lines, and given back to the disk once the journal has it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.logs.journal import Reader
from launcher.supervisor import ranklogs
from launcher.supervisor.journal import Journal
from launcher.supervisor.ranklogs import Tail

LINE = b"x" * 999 + b"\n"


def test_what_the_journal_has_takes_no_room_a_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranklogs, "FREE_SIZE", 2 << 20)
    monkeypatch.setattr(os, "set_blocking", lambda *_: None)  # this process's own stdout
    monkeypatch.setattr(Journal, "_say", lambda *_: None)
    path = tmp_path / "stdout.log"
    journal = Journal(str(tmp_path), "h")
    with path.open("wb", buffering=0) as rank:
        rank.write(LINE * 3000)
        tail = Tail(str(path), b"0", journal)
        while tail.read():
            pass
        kept = path.stat()
        assert kept.st_size == 3_000_000 and kept.st_blocks * 512 < 1_500_000
        rank.write(b"more\n")
        assert tail.read() == 5
    journal.close()
    said = [line for r in Reader().feed((tmp_path / "journal").read_bytes()) for line in r.lines]
    assert said == [LINE[:-1]] * 3000 + [b"more"]
