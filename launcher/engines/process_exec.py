"""A command that runs beside a node of the process engine."""

import threading
from collections.abc import Callable, Iterator
from queue import Queue

from ..ssh.stream import Stream

AHEAD = 4  # chunks of output that may wait; then the command does


class ProcessExec:
    """Satisfies launcher.engines.base.Exec."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.write, self.close_stdin, self.resize = stream.write, stream.close_stdin, stream.resize
        self.wait, self.close = stream.wait, stream.close

    def output(self) -> Iterator[tuple[int, bytes]]:
        chunks: Queue[tuple[int, bytes | Exception]] = Queue(AHEAD)

        def copy(number: int, read: Callable[[], bytes]) -> None:
            try:
                while data := read():
                    chunks.put((number, data))
                chunks.put((number, b""))
            except Exception as error:
                chunks.put((number, error))

        reads = (self._stream.read, self._stream.read_stderr)
        for number, read in enumerate(reads, 1):
            threading.Thread(target=copy, args=(number, read), daemon=True).start()
        for _ in reads:
            while (chunk := chunks.get())[1]:
                number, data = chunk
                if isinstance(data, Exception):
                    raise data
                yield number, data
