"""Call a function in its own thread."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import ParamSpec, TypeVar

AT_ONCE = 32  # hosts that ddpctl contacts at once
# If a signal arrives just before Python starts to wait for a lock, Python notices it only after the
# wait. So no wait is longer than this.
LONGEST_WAIT = 0.5  # seconds
T = TypeVar("T")
P = ParamSpec("P")


class Background(Future[T]):
    """The future result or exception of a thread. Ctrl-C ends the wait for it at any moment."""

    def result(self, timeout: float | None = None) -> T:
        while timeout is None and not self.done():
            wait([self], LONGEST_WAIT)
        return super().result(timeout)


def in_background(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Call a function in a thread that, unlike an Executor's, does not delay the exit on Ctrl-C."""
    future = Background[T]()

    def work() -> None:
        try:
            future.set_result(call(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future
