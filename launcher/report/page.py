"""Render an HTML page about one run, or one that compares two. All data in it is escaped. Pure."""

import re
import shlex
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..diagnosis.stack_groups import newest_groups, verdict
from ..engines.choose import engine_traits
from ..look.stacks import block
from ..outcomes import NodeState, RunState
from ..runs.record import AttemptRecord, NodeRecord, RunRecord, parse_timestamp
from ..text import counted, names, ranges
from .charts import Chart, together, totals
from .drawing import figures, text
from .journals import Journals, changes

# The policy is a second line of defense: even unescaped data could not run or load anything.
HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="generator" content="ddpctl">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{style}</style></head><body>"""
SECTION_HEAD = re.compile(r'<section id="([a-z-]+)"><h2>([A-Za-z ]+)</h2>')


@dataclass(frozen=True)
class RunView:
    """The content of the page about one run.

    hosts_file: its text, without secrets. notes: what data is missing, and why. now: when the page
    is made, in RFC 3339. evidence: texts about failures, by file name.
    """

    record: RunRecord
    charts: Sequence[Chart]
    journals: Journals
    hosts_file: str
    notes: Sequence[str]
    now: str
    evidence: Mapping[str, str] = field(default_factory=dict)


def page(run: RunView) -> str:
    record = run.record
    groups = newest_groups(run.journals.of(record.attempt.number))
    stacks = [*verdict(groups), *(line for group in groups for line in block(group))]
    changed = changes(record, run.journals)
    hosts = folded("With this hosts.yaml", run.hosts_file)
    attempts = table(_attempts(record), ("attempt", "by", "state", "started (UTC)", "took"))
    restarts = table(_restarts(record), ("attempt", "time (UTC)", "kind", "cause"))
    for name, evidence in run.evidence.items():
        if "-restart-" in name:
            restarts += folded(f"Evidence: {name}", evidence)
    planned = ((key, value) for key, value in plan(run).items() if value)
    return document(
        f"{record.run_id}: {record.state}",
        f"<h1>{text(record.run_id)} {state(record.state)}</h1>",
        f'<p class="soft">{text(summary(record))}, as of {text(_clock(run.now))}</p>',
        [
            *map(warning, run.notes),
            section("First failure", "".join(failures(run))),
            section("Curves", figures(run.charts) or "<p>The run wrote no metrics.jsonl.</p>"),
            section("Attempts", attempts),
            section("Restarts", restarts),
            section("Nodes", _nodes(record)),
            '<div class="facts">',
            section("Results", table(results(run).items())),
            section("Stacks of the last attempt", preformatted("\n".join(stacks)) * bool(groups)),
            section("Changes", table(changed, ("attempt", "what", "before", "now"))),
            section("Plan", table(planned)),
            "</div>",
            '<div class="screen">',
            section("Run it again", f"{preformatted(_commands(record))}{hosts}"),
            "</div>",
        ],
    )


def comparison(first: RunView, second: RunView) -> str:
    runs = {"A": first, "B": second}
    heads = [
        f"<p><strong>{name}</strong> {text(run.record.run_id)} {state(run.record.state)} "
        f'<span class="soft">{text(summary(run.record))}</span></p>'
        for name, run in runs.items()
    ]
    drawn = together({name: totals(run.charts) for name, run in runs.items()})
    return document(
        f"{first.record.run_id} and {second.record.run_id}",
        "<h1>Two runs</h1>",
        "".join(heads),
        [
            *(warning(note) for run in runs.values() for note in run.notes),
            *(
                section(f"First failure of {name}", "".join(failures(run)))
                for name, run in runs.items()
            ),
            section("Curves", figures(drawn)),
            '<div class="facts">',
            section("Results", _compared(results(first), results(second))),
            section("Plans", _compared(plan(first), plan(second))),
            "</div>",
        ],
    )


def _compared(a: dict[str, str], b: dict[str, str]) -> str:
    """Return a table of two runs side by side, with differences highlighted."""
    rows = []
    for key in dict.fromkeys([*a, *b]):
        left, right = a.get(key, ""), b.get(key, "")
        differs = ' class="differs"' if left != right else ""
        if left or right:
            rows.append(f"<tr{differs}>{_cells((key, left, right))}</tr>")
    return _framed(("", "A", "B"), rows, "compared")


def document(title: str, heading: str, about: str, parts: Sequence[str]) -> str:
    """Return the whole page, with links to its sections below the heading."""
    style = (Path(__file__).parent / "page.css").read_text()
    head = HEAD.format(title=text(title), style=style)
    body = "\n".join(filter(None, parts))
    links = "".join(f'<a href="#{name}">{title}</a>' for name, title in SECTION_HEAD.findall(body))
    return "\n".join([head, heading, about, f"<nav>{links}</nav>", body, "</body></html>\n"])


def section(title: str, body: str) -> str:
    """Return a section, or "" if `body` is empty. title: never text from a run or a host."""
    name = title.lower().replace(" ", "-")
    return f'<section id="{name}"><h2>{title}</h2>{body}</section>' if body else ""


def warning(note: str) -> str:
    return f'<p class="note">{text(note)}</p>'


def preformatted(body: str) -> str:
    return f"<pre>{text(body)}</pre>"


def table(rows: Iterable[Sequence[object]], head: Sequence[str] = ()) -> str:
    return _framed(head, [f"<tr>{_cells(row)}</tr>" for row in rows])


def _framed(head: Sequence[str], rows: Sequence[str], kind: str = "") -> str:
    top = f"<tr>{_cells(head, 'th')}</tr>" if head else ""
    body = f'<div class="wide"><table class="{kind}">{top}{"".join(rows)}</table></div>'
    return body if rows else ""


def _cells(values: Iterable[object], tag: str = "td") -> str:
    return "".join(f"<{tag}>{text(value)}</{tag}>" for value in values)


def state(word: str) -> str:
    kind = word if word in (RunState.SUCCEEDED, RunState.FAILED) else "other"
    return f'<span class="{kind}">{text(word)}</span>'


def summary(record: RunRecord) -> str:
    """Return a summary of a run: `attempt 2, 8 ranks on 2 nodes, 93.1 s`."""
    last = record.attempt
    words = [
        f"attempt {last.number}",
        f"{counted(last.world_size, 'rank')} on {counted(len(last.nodes), 'node')}",
    ]
    return ", ".join(filter(None, [*words, _took(last)]))


def plan(run: RunView) -> dict[str, str]:
    """Return the run's command, settings, digests and versions by name; "" if unknown."""
    record, last = run.record, run.record.attempt
    return {
        "name": record.name,
        "owner": record.owner,
        "command": shlex.join(record.command),
        "ranks": f"{last.world_size} on {counted(len(last.nodes), 'node')}",
        "master": "" if last.is_reported else f"{last.master_addr}:{last.master_port}",
        "engine": record.engine,
        "image": f"{record.image} {record.image_digest or ''}" if record.image else "",
        "dataset": record.dataset_digest or "",
        "code": record.workdir_digest or "",
        **dict(sorted(run.journals.versions(last.number).items())),
    }


def results(run: RunView) -> dict[str, str]:
    """Return the state, the number of attempts, and the last value of each curve by step.

    For a chart over time, return the mean of all its curves.
    """
    values = {"state": run.record.state, "attempts": str(len(run.record.attempts))}
    for chart in totals(run.charts):
        if chart.x == "step":
            for curve in chart.curves:
                name = re.sub(r", attempt \d+", "", curve.name)
                values[f"{chart.title}, {name}"] = f"{curve.points[-1][1]:.5g}"
        else:
            mean = statistics.fmean(value for curve in chart.curves for _, value in curve.points)
            values[f"{chart.title}, mean"] = f"{mean:.3g}"
    return values


def _nodes(record: RunRecord) -> str:
    """Return a table with one row per attempt and outcome of nodes, the rarest outcome first."""
    rows: list[Sequence[object]] = []
    for attempt in record.attempts:
        groups: dict[tuple[str, object], list[NodeRecord]] = {}
        for node in attempt.nodes:
            groups.setdefault(_outcome(attempt, node), []).append(node)
        for outcome, nodes in sorted(groups.items(), key=lambda group: len(group[1])):
            hosts = names(dict.fromkeys(node.host for node in nodes))
            ranks = ranges(node.node_rank for node in nodes)
            rows.append((attempt.number, ranks, hosts, *outcome))
    return table(rows, ("attempt", "node", "host", "outcome", "exit code"))


def _outcome(attempt: AttemptRecord, node: NodeRecord) -> tuple[str, object]:
    """Return a node's outcome and exit code.

    The code is "" if it is unknown, or if another node's failure stopped this one.
    """
    if node.state is NodeState.STOPPED and attempt.first_failure:
        return f"stopped because node {attempt.first_failure.node_rank} failed", ""
    return node.state.lower(), "" if node.exit_code is None else node.exit_code


def folded(title: str, body: str) -> str:
    return f"<details><summary>{text(title)}</summary>{preformatted(body)}</details>"


def failures(run: RunView) -> Iterator[str]:
    """Yield HTML for each attempt's first failure: the newest one open, earlier ones folded."""
    attempts = reversed(run.record.attempts)
    failed = [(each.number, each.first_failure) for each in attempts if each.first_failure]
    for place, (attempt, failure) in enumerate(failed):
        code = None if failure.exit_code is None else f"exit code {failure.exit_code}"
        words = (failure.kind, code, failure.signal, f"node {failure.node_rank}")
        about = ", ".join(str(word) for word in (*words, _clock(failure.time)) if word)
        yield f'<details class="failure"{" open" * (place == 0)}>'
        yield f"<summary>Attempt {text(attempt)}: <strong>{text(failure.headline)}</strong></summary>"
        yield f'<p class="soft">{text(about)}</p>'
        yield preformatted(failure.excerpt) if failure.excerpt else ""
        yield f"<p>Remedy: {text(failure.remedy)}</p>" if failure.remedy else ""
        if evidence := run.evidence.get(f"failure-attempt-{attempt}"):
            yield folded("Evidence", evidence)
        yield "</details>"


def _attempts(record: RunRecord) -> Iterator[Sequence[object]]:
    for attempt in record.attempts:
        yield attempt.number, attempt.by, attempt.state, _clock(attempt.started), _took(attempt)


def _restarts(record: RunRecord) -> Iterator[Sequence[object]]:
    for attempt in record.attempts:
        for restart in attempt.restarts:
            who = restart.host if restart.rank is None else f"rank {restart.rank} ({restart.host})"
            cause = f"{restart.cause}: {who} {restart.message}"
            yield attempt.number, _clock(restart.time), restart.kind, cause


def _clock(time: str | None) -> str:
    """Return an RFC 3339 time in a readable form: 2026-11-21 05:00:01."""
    return (time or "").replace("T", " ").partition(".")[0]


def _took(attempt: AttemptRecord) -> str:
    begin, end = parse_timestamp(attempt.started or attempt.created), parse_timestamp(attempt.ended)
    return f"{end - begin:.1f} s" if begin is not None and end is not None else ""


def _commands(record: RunRecord) -> str:
    image = ["--image", record.image] if record.image else []
    in_container = engine_traits(record.engine).in_container
    launch = ["ddpctl", "launch", "hosts.yaml", *(image if in_container else [])]
    run_id = shlex.quote(record.run_id)
    return f"""ddpctl check hosts.yaml
{shlex.join([*launch, "--", *record.command])}
ddpctl resume {run_id}    # from its newest complete checkpoint
ddpctl fetch {run_id}     # its checkpoints, metrics and logs"""
