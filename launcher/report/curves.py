"""A chart as inline SVG, which loads nothing and runs no script."""

from __future__ import annotations

from html import escape

from .numbers import Chart, Point

WIDTH, HEIGHT = 640, 240
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 14, 28
COLOURS = ("#1f6feb", "#d1495b", "#2e8b57", "#b7791f", "#7b4fa3", "#3a8fa3")
MOST_POINTS = 800  # per curve; the picture has fewer columns


def chart_svg(chart: Chart) -> str:
    """The curves over the steps, with the smallest and largest values at the axes."""
    drawn = [thinned(curve.points) for curve in chart.curves]
    xs = [x for points in drawn for x, _ in points]
    ys = [y for points in drawn for _, y in points]
    x0, x1, y0, y1 = min(xs), max(xs), min(ys), max(ys)

    def place(point: Point) -> str:
        x = LEFT + (point[0] - x0) / ((x1 - x0) or 1) * (WIDTH - LEFT - RIGHT)
        y = HEIGHT - BOTTOM - (point[1] - y0) / ((y1 - y0) or 1) * (HEIGHT - TOP - BOTTOM)
        return f"{x:.1f},{y:.1f}"

    parts = [
        f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" fill="none" stroke="#999"/>',
        _text(LEFT - 6, TOP + 8, f"{y1:.4g}", "end"),
        _text(LEFT - 6, HEIGHT - BOTTOM, f"{y0:.4g}", "end"),
        _text(LEFT, HEIGHT - 8, f"step {x0:g}", "start"),
        _text(WIDTH - RIGHT, HEIGHT - 8, f"step {x1:g}", "end"),
    ]
    names = []
    for index, (curve, points) in enumerate(zip(chart.curves, drawn, strict=True)):
        colour = colour_of(index)
        name = escape(curve.name)
        line = " ".join(place(point) for point in points)
        parts.append(
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5">'
            f"<title>{name}</title></polyline>"
        )
        cx, cy = place(points[-1]).split(",")
        parts.append(f'<circle cx="{cx}" cy="{cy}" r="2.5" fill="{colour}"/>')
        last = f"{curve.points[-1][1]:.4g}"
        names.append(
            f'<li><svg width="10" height="10"><rect width="10" height="10" fill="{colour}"/></svg> '
            f"{name}: {last} at the end</li>"
        )
    title = escape(chart.title)
    return (
        f'<figure class="chart"><figcaption>{title}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">'
        f"{''.join(parts)}</svg><ul>{''.join(names)}</ul></figure>"
    )


def colour_of(index: int) -> str:
    """A colour that no other curve has: beyond COLOURS, hues a golden angle apart."""
    if index < len(COLOURS):
        return COLOURS[index]
    return f"hsl({index * 137.508 % 360:.2f} 65% {35 + index % 3 * 10}%)"


def thinned(points: tuple[Point, ...]) -> list[Point]:
    """At most MOST_POINTS of them, evenly spaced, and always the last one."""
    every = -(-len(points) // MOST_POINTS)
    kept = list(points[::every])
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'
