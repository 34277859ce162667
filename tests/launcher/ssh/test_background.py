"""Waiting for another thread."""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from launcher.ssh.background import in_background
from launcher.ssh.stream import Stream


def fail() -> None:
    raise TimeoutError("its own")


class Silent(Stream):
    """A command that prints nothing until it is told to end."""

    def __init__(self, over: threading.Event) -> None:
        self._over = over

    def read(self, size: int = 1, timeout: float | None = None) -> bytes:
        self._over.wait(10)
        return b""

    read_stderr = read
    write = close_stdin = wait = is_alive = close = None  # type: ignore[assignment]


Silent.__abstractmethods__ = frozenset()


@pytest.fixture
def over() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize(
    "wait",
    [
        lambda over: in_background(over.wait, 10).result(),
        lambda over: [*Silent(over).output()],
    ],
)
def test_ctrl_c_just_before_python_waits_for_a_lock_ends_the_wait_within_a_second(
    over: threading.Event, wait: Callable[[threading.Event], Any]
) -> None:
    """The kernel has then delivered the signal and does not interrupt the wait for it."""

    def interrupt() -> None:
        time.sleep(0.3)
        _thread.interrupt_main()  # has the effect of such a signal

    in_background(interrupt)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        wait(over)
    assert time.monotonic() - began < 1.3


def test_a_result_is_waited_for_and_an_error_is_raised() -> None:
    assert in_background(lambda: time.sleep(0.1) or 7).result() == 7
    with pytest.raises(TimeoutError, match="its own"):
        in_background(fail).result()
    with pytest.raises(TimeoutError):
        in_background(time.sleep, 5).result(0.01)
