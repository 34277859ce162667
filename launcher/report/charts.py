"""Charts as inline SVG, drawn by pygal. They contain no script and load nothing. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape
from typing import Any
from xml.etree import ElementTree

import pygal
from pygal.etree import etree

from ..logs.events import CONTROL
from .numbers import Chart, Point, is_detail

WIDTH, HEIGHT = 460, 250  # units of the viewBox; text is 11 units high
COLOURS = ("#1f6feb", "#d1495b", "#2e8b57", "#b7791f", "#8957e5", "#1b9e9e", "#d9688f", "#6b7d2a")
MOST_POINTS = 160  # per curve
SHORT = re.compile(r"(\.\d)\d+")  # to round to a tenth of a unit
etree.to_etree()  # pygal would draw with lxml where that is installed, and its elements differ


def text(value: object) -> str:
    return escape(printable(value))


def printable(value: object) -> str:
    return CONTROL.sub("\ufffd", str(value))


def figures(charts: Sequence[Chart]) -> str:
    """Draw charts with a common legend that can hide each curve. Each name has one colour throughout."""
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
    """Reduce a curve to about MOST_POINTS points.

    Keeps both ends, and the lowest and highest point of each section, so that every spike stays
    visible.
    """
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
    """Return ticks: powers of ten, with intermediate steps if there are few."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1,) if len(exponents) > 4 else (1, 2, 5) if high > 3 * low else range(1, 10)
    ticks = [step * 10.0**exponent for exponent in exponents for step in steps]
    every = -(-len(ticks) // 12)
    return [tick for tick in ticks[::every] if low <= tick <= high] or [low, high]


def _range(low: float, high: float) -> tuple[float, float]:
    """Widen a range of equal values, which pygal cannot scale."""
    if high - low > abs(high) * 1e-6:
        return low, high
    return low - (abs(low) / 10 or 1), high + (abs(high) / 10 or 1)


def _for_the_page(root: Any, title: str, classes: Sequence[str]) -> Any:
    """Remove pygal's own scripts and styles. CSS shows a point's label on hover."""
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
