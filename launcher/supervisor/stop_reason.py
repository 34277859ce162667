"""Why a gang stops, in the words that all its nodes share."""

from __future__ import annotations

import signal
from typing import Any, Dict

from .ranks import Rank

Reason = Dict[str, Any]  # at runtime, where Python 3.8 knows no dict[...]


def reason(
    kind: str,
    message: str,
    node_rank: int,
    host: str,
    when: float,
    rank: Rank | None = None,
) -> Reason:
    """Why a gang stops: where it began, and when by node 0's clock."""
    return {
        "kind": kind,
        "message": message,
        "node_rank": node_rank,
        "host": host,
        "rank": rank.rank if rank else None,
        "local_rank": rank.local_rank if rank else None,
        "exit_code": rank.exit_code if rank else None,
        "signal": signal_name(rank.exit_code) if rank else None,
        "time": when,
    }


def earliest(reasons: list[Reason]) -> Reason:
    return min(reasons, key=lambda why: float(why["time"]))


def signal_name(code: int | None) -> str | None:
    if code is None or code >= 0:
        return None
    try:
        return signal.Signals(-code).name
    except ValueError:
        return "signal %d" % -code


def how_it_ended(code: int | None) -> str:
    if code is None:
        return "ended, and torchrun ends the others"
    name = signal_name(code)
    return "was killed by %s" % name if name else "exited with code %s" % code
