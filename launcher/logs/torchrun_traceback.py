"""Leave out torchrun's own report of failed ranks, some 25 lines on each node. Pure.

The report is a traceback that ends with ChildFailedError, then a box between two lines of `=`. The
ranks' own lines show the cause and stay. The log file keeps every line.
"""

from collections import Counter, defaultdict

from .query import PREFIX

MOST_LINES = 200  # of one traceback; bounds memory
ERROR = b"torch.distributed.elastic.multiprocessing.errors.ChildFailedError"


class TorchrunTracebacks:
    """Filters lines `[host:rank] text`, one node at a time."""

    def __init__(self) -> None:
        self.left_out: set[int] = set()  # node ranks whose report was left out
        self._held = defaultdict[int, list[bytes]](list)  # unfinished tracebacks by node rank
        self._borders = Counter[int]()  # lines of `=` still expected, by node rank

    def feed(self, node_rank: int, text: bytes) -> bytes:
        """Return a node's lines without the report. `text` consists of whole lines."""
        return b"".join(self._shown(node_rank, line + b"\n") for line in text.split(b"\n")[:-1])

    def take_held(self) -> bytes:
        """Return lines held back for a traceback that never ended."""
        held = b"".join(line for lines in self._held.values() for line in lines)
        self._held.clear()
        self._borders.clear()
        return held

    def _shown(self, node_rank: int, line: bytes) -> bytes:
        prefix = PREFIX.match(line)
        if prefix is None or prefix[2] is not None:  # the line belongs to a rank
            return line
        text, held = line[prefix.end() :], self._held[node_rank]
        if self._borders[node_rank]:
            self._borders[node_rank] -= text.startswith(b"=====")
            return b""
        if text.startswith(ERROR):
            held.clear()
            self._borders[node_rank] = 2
            self.left_out.add(node_rank)
            return b""
        if held and text.startswith((b" ", b"\t")) and len(held) < MOST_LINES:
            held.append(line)
            return b""
        shown = b"".join(held)
        held.clear()
        if text.startswith(b"Traceback (most recent call last):"):
            held.append(line)
            return shown
        return shown + line
