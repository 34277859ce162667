"""Leave out torchrun's own report of failed ranks, some 25 lines on each node. Pure.

The report is a traceback that ends with ChildFailedError, then a box between two lines of `=`. The
ranks' own lines show the cause and stay. The log file keeps every line.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .query import PREFIX

MOST_LINES = 200  # of one traceback; bounds memory
ERROR = b"torch.distributed.elastic.multiprocessing.errors.ChildFailedError"


@dataclass
class _Node:
    held: list[bytes] = field(default_factory=list)  # the lines of an unfinished traceback
    borders: int = 0  # lines of `=` still expected


class TorchrunTracebacks:
    """Filters lines `[host:rank] text`, one node at a time."""

    def __init__(self) -> None:
        self.left_out: set[int] = set()  # node ranks
        self._nodes: dict[int, _Node] = {}

    def feed(self, node_rank: int, text: bytes) -> bytes:
        """Return a node's lines without the report. `text` consists of whole lines."""
        node = self._nodes.setdefault(node_rank, _Node())
        lines = (line + b"\n" for line in text.split(b"\n")[:-1])
        return b"".join(self._shown(node_rank, node, line) for line in lines)

    def take_held(self) -> bytes:
        """Return lines held back for a traceback that never ended."""
        held = b"".join(line for node in self._nodes.values() for line in node.held)
        self._nodes.clear()
        return held

    def _shown(self, node_rank: int, node: _Node, line: bytes) -> bytes:
        prefix = PREFIX.match(line)
        if prefix is None or prefix[2] is not None:  # the line belongs to a rank
            return line
        text = line[prefix.end() :]
        if node.borders:
            node.borders -= text.startswith(b"=====")
            return b""
        if text.startswith(ERROR):
            node.held, node.borders = [], 2
            self.left_out.add(node_rank)
            return b""
        if text.startswith(b"Traceback (most recent call last):"):
            before, node.held = node.held, [line]
            return b"".join(before)
        if not node.held:
            return line
        node.held.append(line)
        if text.startswith((b" ", b"\t")) and len(node.held) < MOST_LINES:
            return b""
        whole, node.held = node.held, []
        return b"".join(whole)
