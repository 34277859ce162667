"""The HTML page that compares two runs. Pure."""

from __future__ import annotations

from .charts import figures, text
from .numbers import together, totals
from .page import Shown, document, failures, notes, plan, results, section, state, summary


def comparison(first: Shown, second: Shown) -> str:
    runs = {"A": first, "B": second}
    heads = [
        f"<p><strong>{name}</strong> {text(run.record.run_id)} {state(run.record.state)} "
        f'<span class="soft">{text(summary(run.record))}</span></p>'
        for name, run in runs.items()
    ]
    charts = together({name: totals(run.charts) for name, run in runs.items()})
    return document(
        f"{first.record.run_id} and {second.record.run_id}",
        "<h1>Two runs</h1>",
        *heads,
        *(note for run in runs.values() for note in notes(run)),
        *(part for name, run in runs.items() for part in failures(run.record, f"{name}, ")),
        *section("Curves", figures(charts)),
        '<div class="facts">',
        *section("Results", _table(results(first), results(second))),
        *section("Plans", _table(plan(first), plan(second))),
        "</div>",
    )


def _table(a: dict[str, str], b: dict[str, str]) -> str:
    """What differs stands out."""
    rows = []
    for key in dict.fromkeys([*a, *b]):
        left, right = a.get(key, ""), b.get(key, "")
        if left or right:
            differs = ' class="differs"' if left != right else ""
            cells = "".join(f"<td>{text(cell)}</td>" for cell in (key, left, right))
            rows.append(f"<tr{differs}>{cells}</tr>")
    head = "<tr><th></th><th>A</th><th>B</th></tr>"
    return f'<div class="wide"><table class="compared">{head}{"".join(rows)}</table></div>'
