"""Call a function in its own thread."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

AT_ONCE = 32  # hosts that ddpctl contacts at once
T = TypeVar("T")
P = ParamSpec("P")


def in_background(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Call a function in a thread that, unlike an Executor's, does not delay the exit on Ctrl-C."""
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(call(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future
