"""Draw charts as inline SVG, with no scripts and nothing to load. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ..text import printable
from .charts import Chart, Curve, Point

WIDTH, HEIGHT = 460, 250  # units of the viewBox; a letter is 11 units high and up to 6.5 wide
LETTER = 6.5
TOP, BOTTOM = 8.0, HEIGHT - 20.0  # the edges of the plot; the x axis's labels are below it
COLORS = ("#1f6feb", "#d1495b", "#2e8b57", "#b7791f", "#8957e5", "#1b9e9e", "#d9688f", "#6b7d2a")
POINTS_PER_CURVE = 160


def text(value: object) -> str:
    """Return `value` as text for HTML, with control characters removed and markup escaped."""
    return escape(printable(str(value)))


def figures(charts: Sequence[Chart]) -> str:
    """Return HTML for charts with one legend, which can hide curves. Each name has its own color."""
    names = list(dict.fromkeys(curve.name for chart in charts for curve in chart.curves))
    if not names:
        return ""
    rules, legend = "", ""
    for n, name in enumerate(names):
        rules += f".color-{n}{{--c:{color_of(n)}}}"
        rules += f"body:has(#s{n}:not(:checked)) .series.color-{n}{{display:none}}"
        legend += f'<li class="color-{n}"><label><input type="checkbox" id="s{n}" checked><i></i>'
        legend += f"{text(name)}</label></li>"
    drawn = "".join(
        f'<figure class="chart"><figcaption>{text(chart.title)} '
        f'<span class="soft">by {text(chart.x)}</span></figcaption>'
        f"{svg(chart, names)}</figure>"
        for chart in charts
    )
    above = f'<style>{rules}</style><ul class="legend">{legend}</ul>'
    return f'{above}<div class="charts">{drawn}</div>'


def svg(chart: Chart, names: Sequence[str]) -> str:
    """Return one chart as SVG. A curve's color depends on its index in `names`."""
    values = [value for curve in chart.curves for _, value in curve.points]
    low, high = (min(values), max(values)) if chart.top is None else (0.0, max(chart.top, *values))
    y_axis = log_axis(low, high) if chart.log and low > 0 else linear_axis(low, high)
    steps = [x for curve in chart.curves for x, _ in curve.points]
    x_axis = linear_axis(min(steps), max(steps))
    left = 6 + LETTER * max(len(label(y)) for y in y_axis.ticks)
    right = WIDTH - LETTER / 2 * len(label(x_axis.ticks[-1]))

    def x_of(x: float) -> str:
        return f"{left + (right - left) * x_axis.share(x):.1f}"

    def y_of(y: float) -> str:
        return f"{BOTTOM - (BOTTOM - TOP) * y_axis.share(y):.1f}"

    grid = "".join(f"M{left:.1f} {y_of(y)}H{right:.1f}" for y in y_axis.ticks)
    parts = [f'<path class="grid" d="{grid}"/>']
    for y in y_axis.ticks:
        at = f'class="y" x="{left - 5:.1f}" y="{y_of(y)}" dy=".35em"'
        parts.append(f"<text {at}>{label(y)}</text>")
    for x in x_axis.ticks:
        parts.append(f'<text class="x" x="{x_of(x)}" y="{HEIGHT - 5}">{label(x)}</text>')
    for curve in chart.curves:
        dots = [(x_of(x), y_of(y), x, y) for x, y in thinned(curve.points)]
        parts.append(f'<g class="series color-{names.index(curve.name)}{kind(curve)}">')
        parts.append(f'<polyline points="{" ".join(f"{x},{y}" for x, y, *_ in dots)}"/>')
        for cx, cy, x, y in dots:
            tip = text(f"{curve.name}: {y:.4g} at {chart.x} {x:.6g}")
            parts.append(f'<circle cx="{cx}" cy="{cy}" r="5"><title>{tip}</title></circle>')
        parts.append("</g>")
    about = f'role="img" aria-label="{text(chart.title)}"'
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" {about}>{"".join(parts)}</svg>'


def kind(curve: Curve) -> str:
    """Return CSS classes: ` detail` for a curve of one rank or node, ` only` for one point."""
    return " detail" * curve.is_detail + " only" * (len(curve.points) == 1)


def color_of(index: int) -> str:
    """Return a unique color: one of COLORS or, for higher indexes, a multiple of the golden angle."""
    if index < len(COLORS):
        return COLORS[index]
    return f"hsl({index * 137.508 % 360:.2f} 60% {45 + index % 3 * 8}%)"


def label(value: float) -> str:
    return f"{value:,.8g}"


@dataclass(frozen=True)
class Axis:
    """An axis from the value `low` to `high`, with labels at the round values `ticks`."""

    low: float
    high: float
    ticks: Sequence[float]
    log: bool = False

    def share(self, value: float) -> float:
        """Return where a value is on the axis, from 0 at the low end to 1 at the high end."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return (value - low) / (high - low)


def linear_axis(low: float, high: float) -> Axis:
    """Return an axis with two to six ticks, spaced by 1, 2 or 5 times a power of ten."""
    if high - low <= abs(high) * 1e-6:  # leave some space around what is nearly one value
        around = abs(high) / 10 or 1
        low, high = low - around, high + around
    power = 10.0 ** math.floor(math.log10((high - low) / 5))
    step = next(n * power for n in (1, 2, 5, 10) if n * power >= (high - low) / 5)
    first, last = math.ceil(low / step), math.floor(high / step)
    # rounding may move the first and last tick outside the range
    ticks = [min(max(low, n * step), high) for n in range(first, last + 1)]
    return Axis(low, high, ticks)


def log_axis(low: float, high: float) -> Axis:
    """Return a logarithmic axis, with ticks at powers of ten or, in a short range, at round values."""
    if high < 10 * low:
        linear = linear_axis(low, high)
        return Axis(linear.low, linear.high, linear.ticks, log=True)
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high < 1000 * low else (1,)
    ticks = [step * 10.0**exponent for exponent in exponents for step in steps]
    ticks = [tick for tick in ticks if low <= tick <= high]
    return Axis(low, high, ticks[:: -(-len(ticks) // 9)], log=True)


def thinned(points: Sequence[Point]) -> list[Point]:
    """Return the points; of many, only the first, the last, and the extremes of each section."""
    size = -(-len(points) * 2 // POINTS_PER_CURVE)
    if size <= 2:
        return list(points)
    kept = [points[0]]
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        ends = {min(stretch, key=lambda p: p[1]), max(stretch, key=lambda p: p[1])}
        kept += sorted(ends)
    return [*kept, points[-1]]
