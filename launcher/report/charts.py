"""Charts of the trainer's metrics.jsonl: curves per attempt, rank or node, drawn by pygal. Pure.

The inline SVG contains no script and loads nothing.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any
from xml.etree import ElementTree

import pygal
from pygal.etree import etree

from ..logs.metrics import entries, number
from ..text import printable

WIDTH, HEIGHT = 460, 250  # units of the viewBox; text is 11 units high
COLOURS = ("#1f6feb", "#d1495b", "#2e8b57", "#b7791f", "#8957e5", "#1b9e9e", "#d9688f", "#6b7d2a")
MOST_POINTS = 160  # per curve
SHORT = re.compile(r"(\.\d)\d+")  # to cut coordinates to one decimal
etree.to_etree()  # else pygal uses lxml if it is installed, whose elements differ

Point = tuple[float, float]
NodeNames = Mapping[int, Mapping[int, str]]  # attempt -> rank -> the name of its node
MOST_CURVES = 16  # of ranks or nodes; more would be indistinguishable, so none are drawn


@dataclass(frozen=True)
class Curve:
    """A curve. points: (x, value)."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Chart:
    """A chart. log: the y axis is logarithmic.

    top: the y axis goes from 0 to this or the highest value; None: it fits the values.
    """

    title: str
    curves: tuple[Curve, ...]
    x: str = "step"
    log: bool = False
    top: float | None = None


CHARTS = (  # each chart without curves, then (kind of entry, field, name) per curve
    (Chart("Loss", (), log=True), (("train", "loss", "train"), ("eval", "loss", "eval"))),
    (Chart("Accuracy (top 1)", ()), (("eval", "top1", "eval"),)),
    (Chart("Throughput (images/s)", (), top=1.0), (("train", "img_s", "train"),)),
)


def charts(text: bytes, nodes: NodeNames | None = None) -> tuple[Chart, ...]:
    """Return each of CHARTS that has values in metrics.jsonl. Skips malformed lines.

    nodes: the ranks' nodes, to draw throughput per node instead of per rank.
    """
    attempt, points = 0, dict[tuple[str, str, int, str], list[Point]]()
    for entry in entries(text):
        kind = str(entry.get("kind"))
        if kind == "start":
            given = entry.get("attempt")
            attempt = given if isinstance(given, int) else attempt + 1
        step = number(entry.get("step"))
        for name, whose, value in _values(entry, (nodes or {}).get(attempt, {})):
            if step is not None and value is not None:
                points.setdefault((kind, name, attempt, whose), []).append((step, value))
    attempts = sorted({attempt for _, _, attempt, _ in points})
    owners = sorted({whose for _, _, _, whose in points}, key=lambda whose: (len(whose), whose))

    def named(name: str, attempt: int, whose: str) -> str:
        number = f", attempt {attempt}" if len(attempts) > 1 else ""
        return whose if whose.startswith("node ") else f"{name}{whose}{number}"

    made = []
    for chart, sources in CHARTS:
        curves = tuple(
            Curve(named(name, attempt, whose), tuple(found))
            for kind, field, name in sources
            for attempt in attempts
            for whose in owners
            if (found := points.get((kind, field, attempt, whose)))
        )
        if curves:
            made.append(dataclasses.replace(chart, curves=curves))
    return tuple(made)


def _values(
    entry: dict[str, Any], nodes: Mapping[int, str]
) -> Iterator[tuple[str, str, float | None]]:
    """Yield (field, whose, value). whose: "" for all ranks together, " of rank 0", or a node's name."""
    for name, value in entry.items():
        yield name, "", number(value)
    ranks = entry.get("ranks")
    for name, values in ranks.items() if isinstance(ranks, dict) else ():
        if not isinstance(values, list):
            continue
        found = [number(value) for value in values]
        if name == "img_s" and set(nodes) == set(range(len(found))):
            sums = dict.fromkeys(nodes.values(), 0.0)
            for rank, value in enumerate(found):
                sums[nodes[rank]] += value or 0.0
            owned: dict[str, float | None] = {**sums}
        else:
            owned = {f" of rank {rank}": value for rank, value in enumerate(found)}
        if len(owned) <= MOST_CURVES:
            yield from ((name, whose, value) for whose, value in owned.items())


def together(parts: Mapping[str, Sequence[Chart]]) -> tuple[Chart, ...]:
    """Merge charts with the same title. If several parts have charts, add the part to curves' names."""
    parts = {name: charts for name, charts in parts.items() if charts}
    if len(parts) < 2:
        return tuple(next(iter(parts.values()), ()))
    made: dict[str, Chart] = {}
    for name, found in parts.items():
        for chart in found:
            before = made.get(chart.title, dataclasses.replace(chart, curves=()))
            named = tuple(Curve(f"{curve.name}, {name}", curve.points) for curve in chart.curves)
            made[chart.title] = dataclasses.replace(before, curves=before.curves + named)
    return tuple(made.values())


def totals(charts: Sequence[Chart]) -> list[Chart]:
    """Drop the curves of single ranks and nodes, unless a chart has no others."""
    made = []
    for chart in charts:
        totals = tuple(curve for curve in chart.curves if not is_detail(curve.name))
        made.append(dataclasses.replace(chart, curves=totals or chart.curves))
    return made


def is_detail(name: str) -> bool:
    """Return whether a curve belongs to one rank or one node."""
    return " of rank " in name or name.startswith("node ")


def text(value: object) -> str:
    return escape(printable(str(value)))


def figures(charts: Sequence[Chart]) -> str:
    """Draw charts with one legend, which can hide curves. A name has one colour in all charts."""
    names = list(dict.fromkeys(curve.name for chart in charts for curve in chart.curves))
    if not names:
        return ""
    rules, legend = "", ""
    for n, name in enumerate(names):
        rules += f".color-{n}{{--c:{colour_of(n)}}}"
        rules += f"body:has(#s{n}:not(:checked)) .series.color-{n}{{display:none}}"
        legend += f'<li class="color-{n}"><label><input type="checkbox" id="s{n}" checked><i></i>'
        legend += f"{text(name)}</label></li>"
    drawn = "".join(
        f'<figure class="chart"><figcaption>{text(chart.title)} '
        f'<span class="soft">by {text(chart.x)}</span></figcaption>'
        f"{svg(chart, names)}</figure>"
        for chart in charts
    )
    return (
        f'<style>{rules}</style><ul class="legend">{legend}</ul><div class="charts">{drawn}</div>'
    )


def svg(chart: Chart, names: Sequence[str]) -> str:
    """Draw one chart. A curve's colour is that of its index in `names`."""
    curves = [thinned(curve.points) for curve in chart.curves]
    xs = [x for points in curves for x, _ in points]
    ys = [y for points in curves for _, y in points]
    log = chart.log and min(ys) > 0  # pygal's own logarithmic scale applies to both axes
    scale = math.log10 if log else float
    low, high = (min(ys), max(ys)) if chart.top is None else (0.0, max(chart.top, *ys))
    ticks = [{"value": scale(y), "label": f"{y:g}"} for y in powers(low, high)] if log else None
    drawing = pygal.XY(
        width=WIDTH,
        height=HEIGHT,
        margin=4,
        margin_right=14,
        spacing=6,
        range=_range(scale(low), scale(high)),
        xrange=_range(min(xs), max(xs)),
        y_labels=ticks,
        max_scale=8,
        show_legend=False,
        css=[],
        js=[],
        disable_xml_declaration=True,
        truncate_label=-1,
        x_value_formatter=lambda x: f"{x:.6g}",
        value_formatter=lambda y: f"{y:.4g}",
    )
    classes = []
    for curve, points in zip(chart.curves, curves, strict=True):
        tips = [printable(f"{curve.name}: {y:.4g} at {chart.x} {x:.6g}") for x, y in points]
        dots = zip(points, tips, strict=True)
        values = [{"value": (x, scale(y)), "label": tip} for (x, y), tip in dots]
        drawing.add(printable(curve.name), values)
        kinds = " detail" * is_detail(curve.name) + " only" * (len(points) == 1)
        classes.append(f"color-{names.index(curve.name)}{kinds}")
    drawing.add_xml_filter(lambda root: _for_the_page(root, chart.title, classes))
    return str(drawing.render(is_unicode=True))


def colour_of(index: int) -> str:
    """Return a unique colour: after COLOURS, hues that are a golden angle apart."""
    if index < len(COLOURS):
        return COLOURS[index]
    return f"hsl({index * 137.508 % 360:.2f} 60% {45 + index % 3 * 8}%)"


def thinned(points: Sequence[Point]) -> list[Point]:
    """Reduce a curve to about MOST_POINTS: both ends, and each section's lowest and highest point."""
    size = -(-len(points) * 2 // MOST_POINTS)
    if size <= 2:
        return list(points)
    kept = [points[0]]
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        ends = {min(stretch, key=lambda p: p[1]), max(stretch, key=lambda p: p[1])}
        kept += sorted(ends)
    return [*kept, points[-1]]


def powers(low: float, high: float) -> list[float]:
    """Return the ticks of a logarithmic axis: powers of ten, with steps between if these are few."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1,) if len(exponents) > 4 else (1, 2, 5) if high > 3 * low else range(1, 10)
    ticks = [step * 10.0**exponent for exponent in exponents for step in steps]
    every = -(-len(ticks) // 12)
    return [tick for tick in ticks[::every] if low <= tick <= high] or [low, high]


def _range(low: float, high: float) -> tuple[float, float]:
    """Return the range, widened if its ends are almost equal, which pygal cannot scale."""
    if high - low > abs(high) * 1e-6:
        return low, high
    return low - (abs(low) / 10 or 1), high + (abs(high) / 10 or 1)


def _for_the_page(root: Any, title: str, classes: Sequence[str]) -> Any:
    """Replace pygal's scripts, styles and classes with the page's. CSS shows labels on hover."""
    for parent in list(root.iter()):
        for child in list(parent):
            kind = child.get("class", "") if isinstance(child.tag, str) else None
            if kind is None or child.tag in ("defs", "title") or kind.endswith("-overlay"):
                parent.remove(child)
            elif child.tag == "desc":
                if kind == "label":
                    _add_tip(parent, child.text or "")
                parent.remove(child)
            elif match := re.search(r"\bserie-(\d+) color-\d+", kind):
                child.set("class", f"series {classes[int(match[1])]}")
            elif child.tag == "path":
                child.set("d", SHORT.sub(r"\1", child.get("d")))
            elif child.tag == "circle":
                at = {axis: SHORT.sub(r"\1", child.get(axis)) for axis in ("cx", "cy")}
                child.attrib.clear()
                child.attrib.update(at, r="2.5")
    del root.attrib["id"]
    root.set("role", "img")
    root.set("aria-label", printable(title))
    return root


def _add_tip(dot: Any, label: str) -> None:
    x, y = (float(dot.find("circle").get(axis)) for axis in ("cx", "cy"))
    anchor = "start" if x < WIDTH / 3 else "end" if x > WIDTH * 0.6 else "middle"
    at = {"x": f"{x:.0f}", "y": f"{y - 9 if y > 20 else y + 18:.0f}", "text-anchor": anchor}
    ElementTree.SubElement(dot, "text", {"class": "tip", **at}).text = label
