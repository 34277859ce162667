"""Signals wait until the code that holds them has completed its action."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from launcher.follow.ctrl_c import LEAVING, SIGNALS, Interrupts, signals_end_recorder


def interrupts_at_once(number: signal.Signals = signal.SIGINT) -> bool:
    """Send this process a signal. Return whether it raised KeyboardInterrupt."""
    try:
        signal.raise_signal(number)
    except KeyboardInterrupt:
        return True
    return False


def test_a_signal_is_queued_until_the_outermost_hold_ends() -> None:
    with Interrupts() as interrupts:
        with interrupts.held():
            with interrupts.held():
                assert not interrupts_at_once(signal.SIGINT)
            assert not interrupts_at_once(signal.SIGTERM)
            assert interrupts.take() == signal.SIGINT
            assert interrupts.take() == signal.SIGTERM
            assert interrupts.take() is None
        assert interrupts_at_once()


def test_an_error_ends_only_the_hold_that_it_leaves() -> None:
    with Interrupts() as interrupts:
        with interrupts.held():
            with pytest.raises(ValueError, match="boom"), interrupts.held():
                raise ValueError("boom")
            assert not interrupts_at_once()
            interrupts.forget()
        assert interrupts_at_once()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_that_nobody_took_interrupts_at_the_end_of_the_outermost_hold(number: int) -> None:
    completed = []
    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        with interrupts.held():
            with interrupts.held():
                signal.raise_signal(signal.SIGHUP)
                signal.raise_signal(number)
            completed.append("inner")
        pytest.fail("it went on")
    assert completed == ["inner"]


@pytest.mark.parametrize("number", LEAVING)
def test_a_signal_that_leaves_the_run_alone_waits_for_whoever_takes_it(number: int) -> None:
    with Interrupts() as interrupts:
        with interrupts.held():
            signal.raise_signal(number)
        with interrupts.held():
            assert interrupts.take() == number


def test_a_queued_signal_replaces_no_error() -> None:
    with Interrupts() as interrupts, pytest.raises(ValueError, match="boom"), interrupts.held():
        signal.raise_signal(signal.SIGINT)
        raise ValueError("boom")


def test_a_forgotten_signal_interrupts_nothing() -> None:
    with Interrupts() as interrupts, interrupts.held():
        signal.raise_signal(signal.SIGINT)
        interrupts.forget()


def test_the_handlers_before_are_back_afterwards() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with Interrupts():
        assert [signal.getsignal(number) for number in SIGNALS] != before
    assert [signal.getsignal(number) for number in SIGNALS] == before


def at_once(number: int) -> None:
    with Interrupts():
        signal.raise_signal(number)


def in_a_hold(number: int) -> None:
    with Interrupts() as interrupts, interrupts.held():
        signal.raise_signal(number)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("receive", [at_once, in_a_hold, signal.raise_signal])
def test_a_signal_ends_a_recorder_without_cleaning_up(
    number: int, receive: Callable[[int], None], capfd: pytest.CaptureFixture[str]
) -> None:
    child = os.fork()
    if child == 0:
        try:
            with signals_end_recorder():
                receive(number)
        finally:  # also after KeyboardInterrupt
            os.write(2, b"cleaned up")
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 128 + number
    assert capfd.readouterr().err == ""
