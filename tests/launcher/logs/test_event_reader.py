"""Journal events: what the supervisor writes is what the launcher reads, and garbage harms nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.diagnosis.evidence import Evidence, NodeEvidence
from launcher.diagnosis.first_failure import first_failure
from launcher.diagnosis.stack_groups import grouped, located, verdict
from launcher.logs import journal_reader as journal
from launcher.logs.event_reader import KINDS, Unreadable, parsed_event
from launcher.logs.journal_reader import JournalReader
from launcher.logs.log_entry import (
    EventEntry,
    LogEntry,
    OutputLines,
    events_in,
    output_in,
)
from launcher.supervisor.events import (
    Clock,
    Collective,
    Collectives,
    End,
    EndState,
    Environment,
    Event,
    Frame,
    GpuLoad,
    RankExit,
    RankPids,
    RankStacks,
    Reason,
    ResourceUsage,
    RestartInPlace,
    Stack,
    Stopping,
    Thread,
    Usage,
    document,
)
from launcher.supervisor.journal import Journal

REASON = Reason("hung", "no progress for 30 s", 1, "gpu2", 7.5, 3, 1, None, None, ("a", "b"))
FRAMES = (Frame("/workspace/train.py", 29, "main", "sleep()"),)
STACK = Stack(3, 1, 77, "S", None, FRAMES, (Thread("0x1 [pump]", FRAMES),))
EVENTS: list[Event] = [
    Clock(0.25, 0.001),
    RankPids({"2": 76, "3": 77}),
    RankExit(3, 1, -9, 77, "SIGKILL", 7.0, False, "KeyError: 1", "Traceback", ("last words",)),
    RankExit(2, 0, None, 76, None, 7.1, True),
    RankStacks((STACK,)),
    Stopping(REASON),
    RestartInPlace(1, 2, True, REASON),
    ResourceUsage(1, 2 << 30, {"shm": 0, "output": None}),
    Environment({"torch": "2.5.1"}, ("HOME",)),
    Usage(1.5, (GpuLoad(97, 40960, 81920, 1980),), (GpuLoad(96, 40960, 81920, 1980),), (2, 3)),
    Collectives((Collective(2, "nccl 0", 6, ("all_reduce", "barrier")),)),
    End(EndState.HUNG, 1, REASON),
]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    monkeypatch.setattr(os, "set_blocking", lambda *_: None)  # this process's own stdout
    monkeypatch.setattr(Journal, "_copy_to_engine_log", lambda *_: None)
    return Journal(str(tmp_path), "gpu2")


def test_the_launcher_reads_every_event_that_a_supervisor_writes(
    tmp_path: Path, written: Journal
) -> None:
    for event in EVENTS:
        written.write_event(event)
    written.close()
    entries = JournalReader().feed((tmp_path / "journal").read_bytes())
    assert [event for _, event in events_in(entries)] == EVENTS
    assert (
        {type(event) for event in EVENTS}
        == set(KINDS.values())
        == set(Event.__subclasses__()) - {Unreadable}
    )


def test_fields_of_a_newer_version_are_ignored() -> None:
    clock = {**document(Clock(1.0, 0.1)), "drift": [1]}
    assert parsed_event(json.dumps(clock).encode()) == Clock(1.0, 0.1)


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"[]", b"null", b"{}", b'{"kind": []}', b'{"kind": "end"}', b"\xff\xfe",
        b'{"kind": "eclipse"}',
        b'{"kind": "end", "state": 7, "exit_code": 1}',
        b'{"kind": "end", "state": "failed", "exit_code": 1.5}',
        b'{"kind": "end", "state": "failed", "exit_code": true}',
        b'{"kind": "clock", "offset": NaN, "error": 0.1}',
        b'{"kind": "clock", "offset": 1e300, "error": 0.1}',
        b'{"kind": "clock", "offset": 1' + b"0" * 5000 + b', "error": 0.1}',
        b'{"kind": "rank_exit", "rank": 1' + b"0" * 30 + b', "local_rank": 0, "exit_code": 1}',
        b'{"kind": "ranks", "pids": ' + b"[" * 100_000,
        b'{"kind": "stopping", "reason": null}',
    ],
)  # fmt: skip
def test_a_malformed_event_is_skipped(text: bytes) -> None:
    assert parsed_event(text) == Unreadable()


def test_texts_are_short_and_have_no_terminal_escapes() -> None:
    reason = Reason("start", "\x1b[2Jboom\r\ud800\x9b1m\n" + "x" * 100_000, 0)
    event = parsed_event(json.dumps(document(Stopping(reason))).encode())
    assert isinstance(event, Stopping)
    assert event.reason.message.startswith("boom\ufffd\nxxx")
    assert len(event.reason.message) <= 1 << 16


# --- any damage to a real journal -----------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """One value of each of some events is replaced or removed, or some bytes are."""
    lines = []
    for number, event in enumerate(EVENTS):
        fields = document(event)
        for _ in range(draw(st.integers(0, 2))):
            fields = change(draw, fields)
        text = json.dumps(fields).encode()
        lines.append(b"%.6f\t!\t%b\n" % (number + 1.0, text))
        lines.append(b"%.6f\t%d\tlast words\n" % (number + 1.0, draw(st.integers(0, 1 << 40))))
    data = bytearray(b"".join(lines))
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(data) - 1))
        data[start : start + draw(st.integers(0, 9))] = draw(st.binary(max_size=9))
    return bytes(data)


def change(draw: st.DrawFn, value: Any) -> Any:
    """Something in `value`, or all of it."""
    if value and isinstance(value, dict) and draw(st.integers(0, 3)):
        key = draw(st.sampled_from(sorted(value)))
        return {**value, key: change(draw, value[key])}
    if value and isinstance(value, (list, tuple)) and draw(st.booleans()):
        place = draw(st.integers(0, len(value) - 1))
        return [*value[:place], change(draw, value[place]), *value[place + 1 :]]
    return draw(JSON)


def evidence_in(entries: list[LogEntry], node_rank: int) -> NodeEvidence:
    return NodeEvidence(node_rank, "gpu2", 0.5, events_in(entries), output_in(entries))


@pytest.mark.slow
@given(damaged(), damaged())
@settings(deadline=None, max_examples=50)
def test_no_damage_to_a_journal_is_an_exception(first: bytes, second: bytes) -> None:
    nodes = []
    for node_rank, data in enumerate((first, second)):
        reader = JournalReader()
        entries = reader.feed(data)
        assert reader.offset == len(data)
        assert [entry.offset for entry in entries[-1:]] in ([], [data.rfind(b"\n") + 1])
        nodes.append(evidence_in(entries, node_rank))
    failure = first_failure(Evidence(4, nodes))
    if failure:
        json.dumps(vars(failure)).encode()
        failure.headline.encode()
    stacks = [event for node in nodes for event in node.of(RankStacks)]
    verdict(grouped(located(stack, "gpu2", 1) for event in stacks for stack in event.ranks))


def test_a_line_without_end_takes_a_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "LONGEST_LINE", 100)
    reader, fed, ends = JournalReader(), 0, [9, 9 + 6 + 1502]
    for piece in (b"1.0\t0\tok\n1.0\t0\t", *[b"x" * 30] * 50, b"x\n1.5\t!\t", *[b"{" * 99] * 9):
        entries = output_in(reader.feed(piece))
        fed += len(piece)
        if entries:
            [entry] = entries
            assert len(entry.lines[0]) <= 100 and entry.offset == ends.pop(0)
        assert reader.offset == fed
    assert reader.feed(b"}\n2.0\t1\tafter\n") == [
        EventEntry(1.5, Unreadable(), fed + 2),
        OutputLines("", 0, 2.0, 1, [b"after"], fed + 14),
    ]


@pytest.mark.parametrize(
    "line",
    [b"nan\t0\tx", b"inf\t0\tx", b"-1\t0\tx", b"1e300\t0\tx", b"1.0\t99999999\tx", b"1.0\t-7\tx"],
)
def test_a_line_with_an_impossible_time_or_rank_belongs_to_no_rank(line: bytes) -> None:
    [_, bad] = output_in(JournalReader().feed(b"5.0\t1\tgood\n" + line + b"\n"))
    assert (bad.time, bad.rank, bad.lines) == (5.0, None, [line])
