"""Reading a journal: every line once, however its bytes are split."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.logs.journal_reader import JournalReader
from launcher.logs.log_entry import EventEntry, OutputLines, output_in, render
from launcher.logs.query import LogFilter, merged
from launcher.logs.store import LogStore, known_marks
from launcher.supervisor.events import RankPids

Line = tuple[float, int | None, bytes]
WHO = st.one_of(st.none(), st.integers(0, 5))
TEXT = st.binary(max_size=12).map(lambda text: text.replace(b"\n", b"\t"))
LINES = st.lists(st.tuples(st.sampled_from([1.0, 1.5, 7.25]), WHO, TEXT), max_size=40)


def journal(lines: list[Line]) -> bytes:
    rows = ((t, b"-" if rank is None else b"%d" % rank, text) for t, rank, text in lines)
    return b"".join(b"%.6f\t%b\t%b\n" % row for row in rows)


@given(LINES, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_lines_come_out_as_they_went_in(lines: list[Line], chance: random.Random) -> None:
    data, reader, found = journal(lines), JournalReader(), []
    fed = 0
    while fed < len(data):
        piece = data[fed : fed + chance.randint(1, 30)]
        fed += len(piece)
        for entry in output_in(reader.feed(piece)):
            found += [(entry.time, entry.rank, line) for line in entry.lines]
            assert data[entry.offset - 1 : entry.offset] == b"\n"
            assert data[: entry.offset].count(b"\n") == len(found)
        assert reader.offset == fed
    assert found == lines


def test_an_event_stands_between_the_lines_around_it() -> None:
    event = json.dumps({"kind": "ranks", "pids": {}}).encode()
    data = b"1.0\t0\ta\n1.0\t0\tb\n1.0\t!\t" + event + b"\n1.0\t0\tc\n"
    assert JournalReader("h", 2).feed(data) == [
        OutputLines("h", 2, 1.0, 0, [b"a", b"b"], 16),
        EventEntry(1.0, RankPids({}), 16 + 7 + len(event)),
        OutputLines("h", 2, 1.0, 0, [b"c"], len(data)),
    ]


def test_lines_that_are_no_records_belong_to_no_rank() -> None:
    data = b"5.0\t1\tgood\n5.0\t1\nhalf\n6.0\t1\tagain\n"
    _, broken, _ = entries = output_in(JournalReader().feed(data))
    assert (broken.time, broken.rank, broken.lines) == (5.0, None, [b"5.0\t1", b"half"])
    assert [data[: entry.offset].count(b"\n") for entry in entries] == [1, 3, 4]


def test_hours_of_output_in_one_read_are_found_by_time(tmp_path: Path) -> None:
    store = LogStore.acquire(tmp_path, pytest.fail)
    assert store
    for node, minute in ((0, 0.0), (1, 30.0)):
        written: list[Line] = [(minute + 60 * i, node, b"minute %d" % i) for i in range(100)]
        entries = JournalReader("h", node).feed(journal(written))
        store.append(node, entries, attempt=1)
    store.close()

    def lines(log_filter: LogFilter) -> list[bytes]:
        return b"".join(map(render, merged(tmp_path, log_filter, known_marks(tmp_path)))).split(
            b"\n"
        )[:-1]

    assert lines(LogFilter()) == [
        b"[h:%d] minute %d" % (node, i) for i in range(100) for node in (0, 1)
    ]
    late = [b"[h:1] minute 98", b"[h:0] minute 99", b"[h:1] minute 99"]
    assert lines(LogFilter(since=5910.0)) == late
    assert known_marks(tmp_path)[1].offset == len(journal(written))
