"""torchrun's own summary of a failure, for a rank that died before anybody had seen it. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from typing import Any

ROOT = re.compile(
    r"Root Cause.*?^\s*rank\s*: (\d+) \(local_rank: (\d+)\)\s*^\s*exitcode\s*: (-?\d+)",
    re.DOTALL | re.MULTILINE,
)


def root_cause(lines: Sequence[str]) -> dict[str, Any] | None:
    """The rank that torchrun saw fail first, as the event `rank_exit` that nobody has written."""
    found = ROOT.search("\n".join(lines))
    if not found:
        return None
    rank, local_rank, code = map(int, found.groups())
    known = code < 0 and -code in {each.value for each in signal.Signals}
    return {
        "rank": rank,
        "local_rank": local_rank,
        "exit_code": code,
        "signal": signal.Signals(-code).name if known else None,
    }
