"""The HTML page: made from a run's record and its charts. All data is escaped."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from ..diagnosis.first_failure import FirstFailure
from ..engines.choose import engine_traits
from ..hosts.fold import names, ranges
from ..runs.record import AttemptRecord, NodeRecord, RunRecord, parse_timestamp
from .curves import chart_svg
from .numbers import Chart

# The policy is a second barrier: even unescaped data could load or run nothing.
HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>
body{{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}}
h1{{font-size:1.5rem}} h2{{font-size:1.15rem;margin-top:2rem}}
table{{border-collapse:collapse}} td,th{{text-align:left;padding:.15rem 1rem .15rem 0;
vertical-align:top}} th{{font-weight:600}}
pre{{background:#f5f5f5;padding:.7rem;overflow-x:auto}} code,pre{{font-size:13px}}
.SUCCEEDED{{color:#1a7f37}} .FAILED{{color:#b3261e}} .failure{{border-left:4px solid #b3261e;
padding-left:1rem}} .chart{{margin:1rem 0}} svg text{{font-size:11px;fill:#555}}
ul{{list-style:none;padding:0}} figcaption{{font-weight:600}}
@media (prefers-color-scheme:dark){{body{{background:#161616;color:#ddd}} pre{{background:#242424}}
svg text{{fill:#aaa}}}}
</style></head><body>
"""
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")  # not allowed in HTML
BAR, ROW, LABEL = 500, 26, 90  # length of a bar, height of a row, width of its label


def page(
    record: RunRecord, charts: Sequence[Chart], hosts_file: str, notes: Sequence[str], now: str
) -> str:
    """hosts_file: its text, without secrets. notes: what is missing, and why. now: RFC 3339."""
    state = record.state
    kind = state if state in ("SUCCEEDED", "FAILED") else "other"
    parts = [
        HEAD.format(title=text(f"{record.run_id}: {state}")),
        f'<h1>{text(record.run_id)} <span class="{kind}">{text(state)}</span></h1>',
        f"<p>State at {text(now)}.</p>",
        *(f'<p class="note">{text(note)}</p>' for note in notes),
        _failures(record),
        "<h2>Plan</h2>",
        _plan(record),
        "<h2>Hosts</h2>",
        _hosts(record),
        "<h2>Timeline</h2>",
        _timeline(record.attempts, now),
        "<h2>Curves</h2>",
        "".join(chart_svg(chart) for chart in charts)
        or "<p>The run wrote no metrics.jsonl with numbers to draw.</p>",
        "<h2>Run it again</h2>",
        f"<pre>{text(_commands(record))}</pre><p>With this hosts.yaml:</p>",
        f"<pre>{text(hosts_file)}</pre>",
        "</body></html>\n",
    ]
    return "\n".join(part for part in parts if part)


def text(value: object) -> str:
    return escape(CONTROL.sub("\ufffd", str(value)))


def _table(rows: Iterable[Sequence[object]], head: Sequence[str] = ()) -> str:
    top = "<tr>" + "".join(f"<th>{text(cell)}</th>" for cell in head) + "</tr>" if head else ""
    body = ("<tr>" + "".join(f"<td>{text(c)}</td>" for c in row) + "</tr>" for row in rows)
    return f"<table>{top}{''.join(body)}</table>"


def _plan(record: RunRecord) -> str:
    last = record.attempts[-1] if record.attempts else None
    rows = [
        ("name", record.name),
        ("owner", record.owner),
        ("engine", record.engine),
        ("image", f"{record.image} {record.image_digest or ''}" if record.image else ""),
        ("dataset", record.dataset_digest or ""),
        ("code", record.workdir_digest or ""),
        ("command", shlex.join(record.command)),
        ("ranks", f"{last.world_size} on {len(last.nodes)} nodes" if last else ""),
        ("master", f"{last.master_addr}:{last.master_port}" if last else ""),
    ]
    return _table(row for row in rows if row[1])


def _hosts(record: RunRecord) -> str:
    if not record.attempts:
        return _table(enumerate(record.hosts), ("node", "host"))
    rows = [row for attempt in record.attempts for row in _node_rows(attempt)]
    return _table(rows, ("attempt", "node", "host", "outcome", "exit code"))


def _node_rows(attempt: AttemptRecord) -> Iterator[tuple[object, ...]]:
    """A row for the nodes with one outcome, the smallest group first."""
    groups: dict[tuple[str, object], list[NodeRecord]] = {}
    for node in attempt.nodes:
        groups.setdefault(_outcome(attempt, node), []).append(node)
    for outcome, nodes in sorted(groups.items(), key=lambda group: len(group[1])):
        hosts = names(dict.fromkeys(node.host for node in nodes))
        yield attempt.attempt, ranges(node.node_rank for node in nodes), hosts, *outcome


def _outcome(attempt: AttemptRecord, node: NodeRecord) -> tuple[str, object]:
    """What became of the node, and its exit code, which says nothing of one that was stopped."""
    if node.state == "STOPPED" and attempt.first_failure:
        return f"stopped, as node {attempt.first_failure.node_rank} failed", ""
    return node.state.lower(), "" if node.exit_code is None else node.exit_code


def _failures(record: RunRecord) -> str:
    parts = []
    for attempt in record.attempts:
        if attempt.first_failure:
            title = text(f"First failure of attempt {attempt.attempt}")
            parts.append(
                f'<section class="failure"><h2>{title}</h2>{_story(attempt.first_failure)}</section>'
            )
    return "".join(parts)


def _story(failure: FirstFailure) -> str:
    keys = ("host", "node_rank", "rank", "local_rank", "exit_code", "signal", "kind", "time")
    values = [(key.replace("_", " "), getattr(failure, key)) for key in keys]
    parts = [f"<p><strong>{text(failure.message or 'no message')}</strong></p>"]
    parts.append(_table([(key, value) for key, value in values if value is not None]))
    if failure.excerpt:
        parts.append(f"<pre>{text(failure.excerpt)}</pre>")
    if failure.remedy:
        parts.append(f"<p>Remedy: {text(failure.remedy)}</p>")
    return "".join(parts)


def _timeline(attempts: Sequence[AttemptRecord], now: str) -> str:
    """A bar for each attempt, from start to end, with a mark at its first failure."""
    spans = []
    for attempt in attempts:
        begin = parse_timestamp(attempt.started or attempt.created) or 0.0
        spans.append((begin, max(begin, parse_timestamp(attempt.ended or now) or begin)))
    if not spans:
        return "<p>Nothing has started.</p>"
    first, last = spans[0][0], max(end for _, end in spans)
    scale = BAR / ((last - first) or 1)
    drawn, rows = [], []
    for row, (attempt, (begin, end)) in enumerate(zip(attempts, spans, strict=True)):
        y, x = row * ROW, LABEL + (begin - first) * scale
        colour = {"SUCCEEDED": "#1a7f37", "FAILED": "#b3261e"}.get(attempt.state, "#888")
        drawn.append(f'<text x="0" y="{y + 16}">{text(f"attempt {attempt.attempt}")}</text>')
        drawn.append(
            f'<rect x="{x:.1f}" y="{y + 5}" width="{max(2, (end - begin) * scale):.1f}" '
            f'height="14" fill="{colour}"><title>{text(attempt.state)}</title></rect>'
        )
        failed = _failed_at(attempt)
        if failed is not None:
            at = LABEL + (min(max(failed, first), last) - first) * scale
            drawn.append(f'<path d="M{at:.1f} {y}v24" stroke="#f2a03d" stroke-width="3"/>')
        took = f"{end - begin:.1f} s" if attempt.ended else ""
        rows.append(
            (attempt.attempt, attempt.state, attempt.started or "", attempt.ended or "", took)
        )
    picture = (
        f'<svg class="timeline" viewBox="0 0 {LABEL + BAR + 10} {len(spans) * ROW}" role="img" '
        f'aria-label="attempts over time">{"".join(drawn)}</svg>'
    )
    return picture + _table(rows, ("attempt", "state", "started", "ended", "took"))


def _failed_at(attempt: AttemptRecord) -> float | None:
    return parse_timestamp(attempt.first_failure.time) if attempt.first_failure else None


def _commands(record: RunRecord) -> str:
    again = ["ddpctl", "launch", "hosts.yaml", "--", *record.command]
    if record.image and engine_traits(record.engine).in_container:
        again[3:3] = ["--image", record.image]
    lines = ["ddpctl check hosts.yaml", shlex.join(again)]
    lines += [
        f"ddpctl resume {shlex.quote(record.run_id)}    # from its newest complete checkpoint"
    ]
    lines += [f"ddpctl fetch {shlex.quote(record.run_id)}     # its checkpoints, metrics and logs"]
    return "\n".join(lines)
