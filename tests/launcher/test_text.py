"""Folded lists of ranks and host names say exactly what the whole lists say."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from launcher.text import errors, names, ranges

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


@given(st.lists(st.one_of(HOSTS, st.sampled_from(["login", "head"]))))
def test_names_read_back(hosts: list[str]) -> None:
    assert hosts_in(names(hosts)) == set(hosts)


def test_names_of_hosts_fold_by_their_last_number() -> None:
    assert names(["gpu1", "gpu2", "login", "gpu4", "n07"]) == "gpu[1-2,4],login,n07"
    assert names(f"gpu{n}.lab" for n in (1, 2, 3)) == "gpu[1-3].lab"
    assert names(["10.0.0.9", "10.0.0.10"]) == "10.0.0.[9-10]"
    assert names(["node08", "node09", "node10"]) == "node[08-10]"
    assert names(["gpu7"]) == "gpu7"


def test_one_error_of_many_hosts_is_one_line_and_of_few_a_line_each() -> None:
    said = {f"gpu{n}": f"gpu{n}: no answer; try `ssh gpu{n}`" for n in range(1, 41)}
    assert errors(said) == ["gpu[1-40]: no answer; try `ssh gpu1`"]
    few = {**dict([*said.items()][:2]), "gpu7": "gpu7: refused"}
    assert errors(few) == [*few.values()]
