"""The lines and numbers of metrics.jsonl, in which a trainer writes its progress and results. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

LARGEST = 1e30  # a diverged loss; no chart has room for more


def entries(text: bytes) -> Iterator[dict[str, Any]]:
    """The JSON objects among the lines; torn and foreign lines are skipped."""
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict):
            yield entry


def number(value: object) -> float | None:
    """A number that can be shown; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not abs(value) <= LARGEST:
        return None
    return 0.0 if abs(value) < 1 / LARGEST else float(value)
