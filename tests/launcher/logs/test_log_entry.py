"""Recorded lines become entries and lines again, byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.logs.log_entry import OutputLines, parse, render

LABELS = st.sampled_from(
    [
        b"[gpu1:0] ",
        b"[gpu1:12] ",
        b"[gpu1] ",
        b"[fd00::1:2] ",
        b"[fd00::1:2:] ",
        b"[h:05] ",
        b"[] ",
        b"[:5] ",
        b"[\xff:1] ",
        b"[a",
        b"",
    ]
)
TEXTS = st.one_of(st.binary(max_size=8), st.sampled_from([b"[gpu1:0] ", b"a\rb", b""]))
LINES = st.lists(st.tuples(LABELS, TEXTS).map(b"".join).filter(lambda line: b"\n" not in line))


@given(LINES)
def test_any_recorded_lines_are_rendered_as_they_were(lines: list[bytes]) -> None:
    text = b"".join(line + b"\n" for line in lines)
    assert render(parse(text, 0, 1.0)) == text


def test_lines_in_a_row_with_one_label_are_one_record() -> None:
    text = b"[gpu1:3] a\n[gpu1:3] [gpu1:3] b\n[gpu1] c\nd\n[gpu1:3] e\n"
    parsed = [(r.host, r.rank, r.lines) for r in parse(text, node_rank=1, time=2.0)]
    assert parsed == [
        ("gpu1", 3, [b"a", b"[gpu1:3] b"]),
        ("gpu1", None, [b"c"]),
        ("", None, [b"d"]),
        ("gpu1", 3, [b"e"]),
    ]


def test_a_line_that_a_full_disk_cut_off_is_kept() -> None:
    assert parse(b"[gpu1:3] whole\n[gpu1:3] ha", 1, 2.0) == [
        OutputLines("gpu1", 1, 2.0, 3, [b"whole", b"ha"])
    ]


@pytest.mark.parametrize(("rank", "label"), [(None, b"[gpu1] "), (0, b"[gpu1:0] ")])
def test_each_line_gets_its_label(rank: int | None, label: bytes) -> None:
    entry = OutputLines("gpu1", 0, 1.0, rank, [b"a", b"", b"c"])
    assert render([entry]) == label + b"a\n" + label + b"\n" + label + b"c\n"


@pytest.mark.parametrize("rank", [None, 0, 12])
@pytest.mark.parametrize("host", ["fd00::2", "fe80::1%eth0", "2001:db8::1:2"])
def test_the_end_of_an_ipv6_address_is_no_rank(host: str, rank: int | None) -> None:
    entry = OutputLines(host, 0, 1.0, rank, [b"a"])
    assert parse(render([entry]), 0, 1.0) == [entry]
