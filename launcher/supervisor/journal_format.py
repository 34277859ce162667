"""The format of a node's journal, and of its lines where you see them. Pure.

The journal is append-only and has one record per line: TIME<TAB>WHO<TAB>TEXT. TIME is unix seconds
on the node's own clock. WHO is a global rank, `-` for torchrun and the supervisor itself, or `!` for
an event, whose TEXT is a JSON object with a "kind" (see events.py). The event `end` is the last
record.

On disk and on screen, a line of output is `[host:rank] text`, or `[host] text` if it has no rank.
"""


def label(host: bytes, rank: bytes = b"") -> bytes:
    """Return the label of a line of output. rank: empty if it belongs to none."""
    return b"[%b:%b] " % (host, rank) if rank else b"[%b] " % host
