"""Parse metrics.jsonl, in which a trainer writes its progress and results. Pure."""

from collections.abc import Iterator
from typing import Any

from ..budget import parse_json

MOST_VALUES = 100_000  # in one entry
LARGEST = 1e30  # larger values, such as a diverged loss, do not fit a chart


def entries(text: bytes) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects among the lines. Skip truncated lines and other text."""
    for line in text.splitlines():
        try:
            entry = parse_json(line, MOST_VALUES)
        except ValueError:
            continue
        if isinstance(entry, dict):
            yield entry


def number(value: Any) -> float | None:
    """Return the value as a float if a chart can show it, else None."""
    if type(value) not in (int, float) or not abs(value) <= LARGEST:
        return None
    return 0.0 if abs(value) < 1 / LARGEST else float(value)
