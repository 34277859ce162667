"""Connect this terminal to a remote command: raw mode, and changes of its size."""

import contextlib
import queue
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator

from ..errors import DdpctlError


@contextlib.contextmanager
def raw_terminal(resize: Callable[[int, int], None]) -> Iterator[None]:
    """Context manager: put stdin's terminal into raw mode, in which Ctrl-C is ordinary input.

    stdin must be a terminal. A thread calls `resize(rows, columns)` at the start and whenever the
    terminal's size changes.
    """
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    changes: queue.SimpleQueue[bool] = queue.SimpleQueue()  # `put` is safe in a signal handler

    def follow() -> None:
        with contextlib.suppress(DdpctlError, OSError):
            while changes.get():
                resize(*termios.tcgetwinsize(fd))

    handler = signal.signal(signal.SIGWINCH, lambda *_: changes.put(True))
    changes.put(True)
    threading.Thread(target=follow, daemon=True, name="resize").start()
    tty.setraw(fd)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
        signal.signal(signal.SIGWINCH, handler)
        changes.put(False)
