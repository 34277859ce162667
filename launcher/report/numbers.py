"""The trainer's metrics.jsonl as curves: points by step, a curve for each attempt."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Point = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """points: (step, value), in the order they were written."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Chart:
    title: str
    curves: tuple[Curve, ...]


CHARTS = (  # title, then (kind of line, field, what the curve is called)
    ("Loss", (("train", "loss", "train"), ("eval", "loss", "eval"))),
    ("Accuracy (top 1)", (("eval", "top1", "eval"),)),
    ("Throughput (images/s)", (("train", "img_s", "train"),)),
)


def charts(text: bytes) -> tuple[Chart, ...]:
    """Those charts that have a number; lines that are torn or not the trainer's are passed over."""
    attempt, points = 0, dict[tuple[str, str, int], list[Point]]()
    for entry in _entries(text):
        kind = str(entry.get("kind"))
        if kind == "start":
            given = entry.get("attempt")
            attempt = given if isinstance(given, int) else attempt + 1
        step = _number(entry.get("step"))
        for name, value in entry.items():
            number = _number(value)
            if step is not None and number is not None:
                points.setdefault((kind, name, attempt), []).append((step, number))
    attempts = sorted({attempt for _, _, attempt in points})
    made = []
    for title, sources in CHARTS:
        curves = tuple(
            Curve(f"{name}, attempt {attempt}" if len(attempts) > 1 else name, tuple(found))
            for kind, field, name in sources
            for attempt in attempts
            if (found := points.get((kind, field, attempt)))
        )
        if curves:
            made.append(Chart(title, curves))
    return tuple(made)


def charts_by_host(texts: Mapping[str, bytes]) -> tuple[Chart, ...]:
    """The charts of all hosts; a curve says whose it is only where several have written any."""
    made = {host: found for host, text in texts.items() if (found := charts(text))}
    if len(made) < 2:
        return next(iter(made.values()), ())
    together: dict[str, list[Curve]] = {title: [] for title, _ in CHARTS}
    for host, found in made.items():
        for chart in found:
            curves = (Curve(f"{curve.name}, {host}", curve.points) for curve in chart.curves)
            together[chart.title] += curves
    return tuple(Chart(title, tuple(curves)) for title, curves in together.items() if curves)


def _entries(text: bytes) -> list[dict[str, Any]]:
    entries = []
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            entries.append(entry)
    return entries


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None
