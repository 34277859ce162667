"""Charts as plain data: curves from the trainer's metrics.jsonl, by attempt, rank or node. Pure."""

import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..logs.metrics import entries, number

Point = tuple[float, float]
NodeNames = Mapping[int, Mapping[int, str]]  # attempt -> rank -> the name of its node
MOST_CURVES = 16  # of single ranks or nodes in a chart; above this limit, none of them are drawn


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

DRAWN = {(kind, field) for _, sources in CHARTS for kind, field, _ in sources}
MOST_POINTS = 300_000  # the limit of one file, of which the newest are drawn


def charts(text: bytes, nodes: NodeNames | None = None) -> tuple[Chart, ...]:
    """Return each of CHARTS for which metrics.jsonl has values. Skip malformed lines.

    nodes: the names of the ranks' nodes, to draw throughput per node instead of per rank.
    """
    attempt, points = 0, dict[tuple[str, str, int, str], list[Point]]()
    newest = deque[tuple[tuple[str, str, int, str], Point]](maxlen=MOST_POINTS)
    for entry in entries(text):
        kind = str(entry.get("kind"))
        if kind == "start":
            given = entry.get("attempt")
            attempt = given if isinstance(given, int) else attempt + 1
        step = number(entry.get("step"))
        for name, whose, value in _values(entry, (nodes or {}).get(attempt, {})):
            if step is not None and value is not None and (kind, name) in DRAWN:
                newest.append(((kind, name, attempt, whose), (step, value)))
    for key, point in newest:
        points.setdefault(key, []).append(point)
    attempts = sorted({attempt for _, _, attempt, _ in points})
    owners = sorted({whose for _, _, _, whose in points}, key=lambda whose: (len(whose), whose))

    def named(name: str, attempt: int, whose: str) -> str:
        number = f", attempt {attempt}" if len(attempts) > 1 else ""
        return whose if whose.startswith("node ") else f"{name}{whose}{number}"

    made = []
    for chart, sources in CHARTS:
        curves = tuple(
            Curve(named(name, attempt, whose), tuple(line))
            for kind, field, name in sources
            for attempt in attempts
            for whose in owners
            if (line := points.get((kind, field, attempt, whose)))
        )
        if curves:
            made.append(dataclasses.replace(chart, curves=curves))
    return tuple(made)


def _values(
    entry: dict[str, Any], nodes: Mapping[int, str]
) -> Iterator[tuple[str, str, float | None]]:
    """Yield (field, whose, value). whose: "" for all ranks, " of rank 0", or a node's name."""
    for name, value in entry.items():
        yield name, "", number(value)
    ranks = entry.get("ranks")
    for name, values in ranks.items() if isinstance(ranks, dict) else ():
        if not isinstance(values, list):
            continue
        numbers = [number(value) for value in values]
        if name == "img_s" and set(nodes) == set(range(len(numbers))):
            sums = dict.fromkeys(nodes.values(), 0.0)
            for rank, value in enumerate(numbers):
                sums[nodes[rank]] += value or 0.0
            owned: dict[str, float | None] = {**sums}
        else:
            owned = {f" of rank {rank}": value for rank, value in enumerate(numbers)}
        if len(owned) <= MOST_CURVES:
            yield from ((name, whose, value) for whose, value in owned.items())


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
