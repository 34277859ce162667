"""Running functions in the background."""

from __future__ import annotations

import threading

import pytest

from launcher.ssh.many import in_background


def test_background_processes_do_not_delay_the_exit() -> None:
    """The interpreter waits for all threads but daemons before it exits."""
    release = threading.Event()

    def is_daemon() -> bool:
        assert release.wait(10)
        return threading.current_thread().daemon

    result = in_background(is_daemon)
    release.set()
    assert result.result(10)


def test_an_error_in_the_background_is_raised_where_the_result_is_asked_for() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        in_background(fail).result(10)
