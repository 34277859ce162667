"""The trainer's metrics.jsonl as curves: one for each attempt and each rank."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Point = tuple[float, float]
MOST_RANKS = 16  # with more, the curves cannot be told apart, and only the totals are drawn


@dataclass(frozen=True)
class Curve:
    """points: (step, value), as written."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Chart:
    title: str
    curves: tuple[Curve, ...]


CHARTS = (  # title, then (kind of line, field, name of the curve)
    ("Loss", (("train", "loss", "train"), ("eval", "loss", "eval"))),
    ("Accuracy (top 1)", (("eval", "top1", "eval"),)),
    ("Throughput (images/s)", (("train", "img_s", "train"),)),
)


def charts(text: bytes) -> tuple[Chart, ...]:
    """Each of CHARTS that has a value. Lines that the trainer did not write are skipped."""
    attempt, points = 0, dict[tuple[str, str, int, str], list[Point]]()
    for entry in _entries(text):
        kind = str(entry.get("kind"))
        if kind == "start":
            given = entry.get("attempt")
            attempt = given if isinstance(given, int) else attempt + 1
        step = _number(entry.get("step"))
        for name, whose, value in _values(entry):
            number = _number(value)
            if step is not None and number is not None:
                points.setdefault((kind, name, attempt, whose), []).append((step, number))
    attempts = sorted({attempt for _, _, attempt, _ in points})
    owners = sorted({whose for _, _, _, whose in points}, key=lambda whose: (len(whose), whose))
    made = []
    for title, sources in CHARTS:
        curves = tuple(
            Curve(
                f"{name}{whose}{f', attempt {attempt}' if len(attempts) > 1 else ''}", tuple(found)
            )
            for kind, field, name in sources
            for attempt in attempts
            for whose in owners
            if (found := points.get((kind, field, attempt, whose)))
        )
        if curves:
            made.append(Chart(title, curves))
    return tuple(made)


def _values(entry: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """(field, whose, value); whose is "" for all ranks together, then " of rank 0" and so on."""
    for name, value in entry.items():
        yield name, "", value
    ranks = entry.get("ranks")
    for name, values in ranks.items() if isinstance(ranks, dict) else ():
        if isinstance(values, list) and len(values) <= MOST_RANKS:
            for rank, value in enumerate(values):
                yield name, f" of rank {rank}", value


def charts_by_host(texts: Mapping[str, bytes]) -> tuple[Chart, ...]:
    """The charts of all hosts. If several have metrics, each curve is named after its host."""
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
    return float(value) if abs(value) <= sys.float_info.max else None
