"""An error says where, what and the remedy on one line; hosts share a line only if theirs are the same."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.errors import (
    CommandFailed,
    DdpctlError,
    HostUnreachable,
    NodesFailed,
    PreflightError,
    Several,
    UsageError,
    lines,
)
from launcher.outcomes import Exit
from launcher.text import one_line


def test_an_error_reads_where_what_and_remedy() -> None:
    assert str(DdpctlError("its disk is full", "free some space", host="gpu1")) == (
        "gpu1: its disk is full; free some space"
    )
    assert (
        str(UsageError("--tail x: not a number", "write 10")) == "--tail x: not a number; write 10"
    )
    assert str(DdpctlError("no remedy", host="gpu1")) == "gpu1: no remedy"


@given(st.text(), st.text(), st.text())
def test_an_error_is_one_printable_line_whatever_a_host_said(
    what: str, remedy: str, host: str
) -> None:
    error = DdpctlError(what, remedy, host=host)
    for text in (error.what, error.remedy, error.host):
        assert text == one_line(text)


def test_hosts_with_one_error_share_a_line_even_two() -> None:
    refused = {f"gpu{n}": HostUnreachable("refused", "start sshd", host=f"gpu{n}") for n in (1, 2)}
    assert str(NodesFailed(refused)) == "gpu[1-2]: refused; start sshd"


def test_hosts_with_different_errors_never_share_a_line() -> None:
    switches = {f"gpu{n}": CommandFailed(f"cannot reach its switch gpu{n}0") for n in range(1, 5)}
    assert str(NodesFailed(switches)).splitlines() == [
        f"gpu{n}: cannot reach its switch gpu{n}0" for n in range(1, 5)
    ]
    one, two = CommandFailed("full", "free space"), CommandFailed("full", "buy a disk")
    assert str(NodesFailed({"a": one, "b": two})) == "a: full; free space\nb: full; buy a disk"


def test_an_error_without_a_host_gets_that_of_its_node() -> None:
    assert str(NodesFailed({"gpu1": CommandFailed("exit 1")})) == "gpu1: exit 1"


@pytest.mark.parametrize(
    ("errors", "code"),
    [
        ([UsageError("x"), PreflightError("y")], Exit.PREFLIGHT),
        ([PreflightError("y"), HostUnreachable("x"), CommandFailed("z")], Exit.UNREACHABLE),
        ([CommandFailed("z")], Exit.FAILED),
    ],
)
def test_several_errors_exit_as_the_worst_and_unreachable_hosts_come_first(
    errors: list[DdpctlError], code: Exit
) -> None:
    assert Several(errors).exit_code == code
    assert NodesFailed({str(n): error for n, error in enumerate(errors)}).exit_code == code


def test_errors_that_contain_errors_are_printed_one_by_one() -> None:
    inner = Several([UsageError("a"), UsageError("b")])
    assert lines([inner, UsageError("a")]) == ["a", "b"]


def test_an_error_can_be_copied() -> None:
    error = copy.copy(HostUnreachable("refused", "start sshd", host="gpu1"))
    assert (str(error), error.host) == ("gpu1: refused; start sshd", "gpu1")
