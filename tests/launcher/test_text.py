"""Folded lists name exactly what full lists name; durations read back; untrusted text becomes safe."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.text import (
    bytes_in,
    duration,
    duration_remedy,
    names,
    numbered,
    one_line,
    printable,
    quoted,
    ranges,
    seconds_in,
)

HOSTS = st.builds(
    "{}{:0{}}{}".format,
    st.sampled_from(["gpu", "rack2-n", "10.0.0.", ""]),
    st.integers(0, 30),
    st.integers(1, 3),
    st.sampled_from(["", ".lab"]),
)


def numbers_in(text: str) -> list[str]:
    """Every number of `0-3,5`, with its leading zeros."""
    found = []
    for span in text.split(",") if text else []:
        low, _, high = span.partition("-")
        found += [f"{n:0{len(low)}}" for n in range(int(low), int(high or low) + 1)]
    return found


def hosts_in(text: str) -> set[str]:
    """Every name of `gpu[1-3],login`."""
    found = set()
    for word in re.findall(r"[^,\[]*\[[^\]]*\][^,]*|[^,]+", text):
        before, bracket, rest = word.partition("[")
        inner, _, after = rest.partition("]")
        found |= {before + n + after for n in numbers_in(inner)} if bracket else {word}
    return found


@given(st.sets(st.integers(0, 300)))
def test_ranges_read_back(numbers: set[int]) -> None:
    assert {int(number) for number in numbers_in(ranges(numbers))} == numbers


def test_numbers_follow_a_noun_in_the_right_form() -> None:
    assert numbered("GPU", [3]) == "GPU 3"
    assert numbered("GPU", iter([3, 3])) == "GPU 3"
    assert numbered("rank", {5, 0, 1}) == "ranks 0-1,5"


@given(st.lists(st.one_of(HOSTS, st.sampled_from(["login", "head"]))))
def test_names_read_back(hosts: list[str]) -> None:
    assert hosts_in(names(hosts)) == set(hosts)


def test_names_of_hosts_fold_by_their_last_number() -> None:
    assert names(["gpu1", "gpu2", "login", "gpu4", "n07"]) == "gpu[1-2,4],login,n07"
    assert names(f"gpu{n}.lab" for n in (1, 2, 3)) == "gpu[1-3].lab"
    assert names(["10.0.0.9", "10.0.0.10"]) == "10.0.0.[9-10]"
    assert names(["node08", "node09", "node10"]) == "node[08-10]"
    assert names(["gpu7"]) == "gpu7"


@given(st.integers(0, 400 * 86400))
def test_durations_read_back(seconds: int) -> None:
    assert seconds_in(duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("30m", 1800),
        ("2h30m", 9000),
        ("1d", 86400),
        ("24:00:00", 86400),
        ("1:02:03", 3723),
        ("0", 0),
        ("", None),
        ("24", None),
        ("1.5h", None),
        ("30m2h", None),
        ("24:00", None),
        ("1:60:00", None),
        ("2 hours", None),
        ("-1s", None),
        ("\u0663s", None),
    ],
)
def test_durations(text: str, seconds: int | None) -> None:
    assert seconds_in(text) == seconds


def test_the_remedy_for_a_bare_number_shows_units() -> None:
    assert duration_remedy("24") == "write 24h or 24m"
    assert duration_remedy("3600") == "write 3600m or 3600s"
    assert "2h30m" in duration_remedy("soon")


def test_sizes() -> None:
    assert [bytes_in(text) for text in ("64m", "1G", "16GiB", "512", "2 tb")] == [
        64 << 20,
        1 << 30,
        16 << 30,
        512,
        2 << 40,
    ]
    assert [bytes_in(text) for text in ("big", "", "1.5g", "-1m")] == [None] * 4


HOSTILE = "\x1b[]0;mJ\x07\x9b\x90 \n\t\u202e\ud800\ufffe\u2028"
TEXTS = st.text() | st.text(st.characters(max_codepoint=0xFFFF)) | st.text(HOSTILE)


@given(TEXTS)
def test_printable_text_has_nothing_that_a_terminal_obeys_or_a_file_cannot_hold(text: str) -> None:
    safe = printable(text)
    safe.encode()
    assert not re.search("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029\ufffe\uffff]", safe)
    assert printable(safe) == safe


@given(st.text(st.characters(exclude_categories=["C", "Zl", "Zp"])))
def test_ordinary_text_is_printed_as_it_is(text: str) -> None:
    assert printable(f"{text}\t\n") == f"{text}\t\n"


@given(TEXTS, st.integers(4, 50))
def test_one_line_is_one_line_of_bounded_length(text: str, most: int) -> None:
    line = one_line(text, most)
    assert len(line) <= most and len(line.splitlines()) <= 1
    assert printable(line) == line


@given(TEXTS)
def test_a_quoted_value_is_one_printable_line(text: str) -> None:
    assert quoted(text).isprintable() and quoted(text).isprintable()


def test_only_values_that_would_be_misread_are_quoted() -> None:
    assert [quoted(text) for text in ("gpu1", "", " a", "a\nb", "x" * 99)] == [
        "gpu1",
        "''",
        "' a'",
        r"'a\nb'",
        "x" * 60 + "...",
    ]
