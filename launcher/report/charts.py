"""Charts as plain data: curves from the trainer's metrics.jsonl, by attempt and rank. Pure."""

import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..logs.metrics import entries, number

Point = tuple[float, float]
MOST_CURVES = 16  # a chart with more curves of single ranks or nodes shows none of them


@dataclass(frozen=True)
class Curve:
    """A line through points (x, value). Curves of the same name form one series, with gaps."""

    name: str
    points: tuple[Point, ...]

    @property
    def is_detail(self) -> bool:
        """Whether the curve belongs to one rank or one node."""
        return " of rank " in self.name or self.name.startswith("node ")


@dataclass(frozen=True)
class Chart:
    """A chart. log: whether the y axis is logarithmic.

    top: the y axis goes from 0 to `top`, or higher if a value is; None: it fits the values.
    """

    title: str
    curves: tuple[Curve, ...]
    x: str = "step"
    log: bool = False
    top: float | None = None


CHARTS = (  # each chart without its curves, then (kind of entry, field, name) of each curve
    (Chart("Loss", (), log=True), (("train", "loss", "train"), ("eval", "loss", "eval"))),
    (Chart("Accuracy (top 1)", ()), (("eval", "top1", "eval"),)),
    (Chart("Throughput (images/s)", (), top=1.0), (("train", "img_s", "train"),)),
)

BY_RANK = ("loss", "top1")  # a rank's throughput is only its share of the total
DRAWN = {(kind, field) for _, sources in CHARTS for kind, field, _ in sources}
POINTS_PER_FILE = 300_000  # the newest are drawn


def charts(text: bytes) -> tuple[Chart, ...]:
    """Return each of CHARTS for which metrics.jsonl has values. Skip malformed lines."""
    attempt = 0
    newest = deque[tuple[tuple[str, str, int, str], Point]](maxlen=POINTS_PER_FILE)
    for entry in entries(text):
        kind = str(entry.get("kind"))
        if kind == "start":
            given = entry.get("attempt")
            attempt = given if isinstance(given, int) else attempt + 1
        step = number(entry.get("step"))
        for name, whose, value in _values(entry):
            if step is not None and value is not None and (kind, name) in DRAWN:
                newest.append(((kind, name, attempt, whose), (step, value)))
    series: dict[tuple[str, str], dict[tuple[int, str], list[Point]]] = {}  # by kind and field
    for (kind, name, attempt, whose), point in newest:
        series.setdefault((kind, name), {}).setdefault((attempt, whose), []).append(point)
    several = len({attempt for owners in series.values() for attempt, _ in owners}) > 1
    made = []
    for chart, sources in CHARTS:
        curves = tuple(
            Curve(f"{name}{whose}" + f", attempt {attempt}" * several, tuple(points))
            for kind, field, name in sources
            for (attempt, whose), points in series.get((kind, field), {}).items()
        )
        if curves:
            made.append(dataclasses.replace(chart, curves=curves))
    return tuple(made)


def _values(entry: dict[str, Any]) -> Iterator[tuple[str, str, float | None]]:
    """Yield (field, whose, value). whose: "" for all ranks, or a rank as in " of rank 0"."""
    for name, value in entry.items():
        yield name, "", number(value)
    ranks = entry.get("ranks")
    for name in BY_RANK:
        values = ranks.get(name) if isinstance(ranks, dict) else None
        if isinstance(values, list) and len(values) <= MOST_CURVES:
            yield from ((name, f" of rank {rank}", number(v)) for rank, v in enumerate(values))


def together(parts: Mapping[str, Sequence[Chart]]) -> tuple[Chart, ...]:
    """Merge charts of the same title. With several parts, add the part's name to the curves' names."""
    parts = {name: charts for name, charts in parts.items() if charts}
    if len(parts) < 2:
        return tuple(next(iter(parts.values()), ()))
    made: dict[str, Chart] = {}
    for name, group in parts.items():
        for chart in group:
            before = made.get(chart.title, dataclasses.replace(chart, curves=()))
            named = tuple(Curve(f"{curve.name}, {name}", curve.points) for curve in chart.curves)
            made[chart.title] = dataclasses.replace(before, curves=before.curves + named)
    return tuple(made.values())


def totals(charts: Sequence[Chart]) -> list[Chart]:
    """Return the charts without the curves of single ranks or nodes, unless there are no others."""
    made = []
    for chart in charts:
        totals = tuple(curve for curve in chart.curves if not curve.is_detail)
        made.append(dataclasses.replace(chart, curves=totals or chart.curves))
    return made
