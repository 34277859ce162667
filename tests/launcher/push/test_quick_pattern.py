from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pathspec import GitIgnoreSpec

from launcher.push.files.quick_pattern import QuickPattern

PIECES = [
    "*",
    "**",
    "a",
    "b",
    "/",
    "/**/",
    "?",
    "[ab]",
    r"\*",
    "*a*b",
    "!",
    "(",
    ".",
    "[]a]",
    "[a*]",
]
PATHS = st.lists(st.text("ab*(.]", min_size=1, max_size=4), min_size=1, max_size=7).map("/".join)


@pytest.mark.slow
@given(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=9).map("".join),
    st.lists(PATHS | PATHS.map("{}/".format), min_size=3, max_size=8),
)
def test_a_pattern_matches_what_the_library_s_matches(pattern: str, paths: list[str]) -> None:
    try:
        library = GitIgnoreSpec.from_lines([pattern, "!a/b"])
    except ValueError:
        with pytest.raises(ValueError):
            GitIgnoreSpec.from_lines([pattern, "!a/b"], QuickPattern)
        return
    ours = GitIgnoreSpec.from_lines([pattern, "!a/b"], QuickPattern)
    for path in paths:
        expected, result = library.check_file(path), ours.check_file(path)
        assert (result.include, result.index) == (expected.include, expected.index)


def test_a_negated_set_matches_no_slash_as_in_git() -> None:
    for pattern in ("a[!b]c", "a[!]]c", "a[!]b]c"):
        [compiled] = GitIgnoreSpec.from_lines([pattern], QuickPattern).patterns
        assert compiled.match_file("axc") and not compiled.match_file("a/c")
        assert not compiled.match_file("a]c") or pattern == "a[!b]c"


@pytest.mark.parametrize(
    "pattern",
    [
        "*a" * 30 + "b",
        "**/a/**/a/**/a/**/b",
        "**/*a*a/" * 10 + "b",
        "*?" * 30 + "b",
        "[!b]*" * 30 + "c",
        "*" * 1000 + "b",
    ],
)
def test_no_pattern_takes_long_with_a_long_path(pattern: str) -> None:
    spec = GitIgnoreSpec.from_lines([pattern], QuickPattern)
    for path in ("a" * 250, "a/" * 2000, ("a" * 250 + "/") * 16):
        began = time.process_time()
        assert not spec.check_file(path).include
        assert time.process_time() - began < 1  # most take a millisecond
