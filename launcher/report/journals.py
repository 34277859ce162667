"""Extract a run's environment, usage and stacks from its nodes' journals. Pure."""

import dataclasses
import itertools
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ..diagnosis.evidence import NodeEvidence
from ..logs.journal_reader import JournalReader
from ..logs.log_entry import events_in
from ..logs.metrics import number
from ..outcomes import NodeState, run_state
from ..runs.record import AttemptRecord, RunRecord, parse_timestamp, timestamp
from ..supervisor.events import Environment, Usage
from ..text import names
from .charts import MOST_CURVES, Chart, Curve, Point

# by the chart's title: Chart.top, and a function that returns the value of one sample
USAGE: dict[str, tuple[float, Callable[[Usage], float]]] = {
    "GPU use (%)": (100.0, lambda usage: statistics.fmean(gpu.use for gpu in usage.gpus)),
    "GPU memory (GiB)": (1.0, lambda usage: sum(gpu.used for gpu in usage.gpus) / 1024),
    "CPU cores busy": (1.0, lambda usage: usage.cores),
}
SAMPLED = 10.0  # seconds between a supervisor's samples
HEAD = re.compile(rb"^== (\d{1,7})/attempt-(\d{1,7})$\n?", re.MULTILINE)


@dataclass
class NodeJournal(NodeEvidence):
    attempt: int = 1

    @property
    def name(self) -> str:
        return f"node {self.node_rank} ({self.host})"


@dataclass(frozen=True)
class Journals:
    nodes: Sequence[NodeJournal] = field(default_factory=list)

    def of(self, attempt: int) -> list[NodeJournal]:
        return [node for node in self.nodes if node.attempt == attempt]

    def versions(self, attempt: int) -> dict[str, str]:
        """Return the version of each component; if hosts differ, each version with its hosts."""
        versions: dict[str, dict[str, list[str]]] = {}
        for node in self.of(attempt):
            for environment in node.of(Environment):
                for thing, version in environment.versions.items():
                    versions.setdefault(thing, {}).setdefault(version, []).append(node.host)
        return {
            thing: next(iter(hosts))
            if len(hosts) == 1
            else ", ".join(f"{version} on {names(where)}" for version, where in hosts.items())
            for thing, hosts in versions.items()
        }

    def variables(self, attempt: int) -> set[str]:
        environments = (each for node in self.of(attempt) for each in node.of(Environment))
        return {name for environment in environments for name in environment.variables}

    def usage_charts(self, began: float) -> tuple[Chart, ...]:
        """Return the charts of resource usage. began: where the x axis begins, in unix seconds."""
        many = len({node.name for node in self.nodes}) > MOST_CURVES
        charts = []
        for title, (top, _) in USAGE.items():
            curves: list[Curve] = []
            for attempt in sorted({node.attempt for node in self.nodes}):
                lines = [Curve(each.name, _points(each, title, began)) for each in self.of(attempt)]
                drawn = [line for line in lines if line.points]
                curves += _extremes(drawn) if many and drawn else drawn
            if curves:
                charts.append(Chart(title, tuple(curves), "minute", top=top))
        return tuple(charts)


def _points(node: NodeJournal, title: str, began: float) -> tuple[Point, ...]:
    """Return a node's samples as (minute, value), for the chart of USAGE with this title."""
    _, value = USAGE[title]
    return tuple(
        (number((time - began) / 60) or 0.0, number(value(usage)) or 0.0)
        for time, usage in node.timed(Usage)
        if usage.gpus or not title.startswith("GPU")
    )


def _extremes(lines: Iterable[Curve]) -> list[Curve]:
    """Return three curves instead of one per node: the lowest, mean and highest value over time."""
    moments: dict[float, list[float]] = {}
    for time, value in itertools.chain.from_iterable(line.points for line in lines):
        moments.setdefault(round(time * 60 / SAMPLED) * SAMPLED / 60, []).append(value)
    kinds = (("lowest node", min), ("mean of nodes", statistics.fmean), ("highest node", max))
    times = sorted(moments)
    return [Curve(name, tuple((time, of(moments[time])) for time in times)) for name, of in kinds]


def parse_journals(record: RunRecord, reports: Iterable[tuple[str, bytes]]) -> Journals:
    """Parse the output of EVENTS from each host. Skip nodes that did not run on the host.

    reports: the name of each host with its output. A name occurs twice if two accounts share a
    host.
    """
    nodes = ((each.number, node) for each in record.attempts for node in each.nodes)
    hosts = {(attempt, node.node_rank): node.host for attempt, node in nodes}
    journals: dict[tuple[int, int], NodeJournal] = {}
    for host, text in reports:
        parts = iter(HEAD.split(text)[1:])
        for rank, attempt, lines in zip(parts, parts, parts, strict=True):
            place = (int(attempt), int(rank))
            if hosts.get(place) == host:
                events = events_in(JournalReader().feed(lines))
                journals[place] = NodeJournal(place[1], host, events=events, attempt=place[0])
    return Journals([journals[place] for place in sorted(journals)])


def with_reported_states(record: RunRecord, journals: Journals) -> RunRecord:
    """Return the record, with states from the journals if it does not say how the run ended.

    The record lacks the end if another machine followed the run, or if the run's recorder died.
    """
    attempt = record.attempt
    seen = {node.node_rank: node for node in journals.of(attempt.number) if node.events}
    if attempt.state.is_final or not seen:
        return record
    nodes = []
    for entry in attempt.nodes:
        node = seen.get(entry.node_rank)
        if node and node.end:
            code = node.end.exit_code
            entry = dataclasses.replace(entry, state=node.end_state, exit_code=code)
        elif node:
            entry = dataclasses.replace(entry, state=NodeState.RUNNING)
        nodes.append(entry)
    outcome = run_state([node.state for node in nodes], len(nodes))
    ended = timestamp(max(node.last_seen for node in seen.values())) if outcome.is_final else None
    newest = dataclasses.replace(attempt, nodes=nodes, state=outcome, ended=ended)
    return dataclasses.replace(record, attempts=[*record.attempts[:-1], newest])


def changes(record: RunRecord, journals: Journals) -> list[tuple[int, str, str, str]]:
    """Return (attempt, what, before, now) for each change from one attempt to the next.

    For environment variables, `before` lists the removed names and `now` the added ones.
    """

    def circumstances(attempt: AttemptRecord) -> dict[str, str]:
        digests = attempt.digests.items()
        return {
            "hosts": names(node.host for node in attempt.nodes),
            "ranks": str(attempt.world_size),
            **{what: digest.removeprefix("sha256:")[:12] for what, digest in digests},
            **journals.versions(attempt.number),
        }

    rows = []
    for before, now in itertools.pairwise(record.attempts):
        old, new = circumstances(before), circumstances(now)
        for what in dict.fromkeys([*old, *new]):
            if old.get(what) and new.get(what) and old[what] != new[what]:
                rows.append((now.number, what, old[what], new[what]))
        names_before, names_now = (journals.variables(a.number) for a in (before, now))
        if names_before and names_now and names_before != names_now:
            gone = ", ".join(sorted(names_before - names_now))
            added = ", ".join(sorted(names_now - names_before))
            rows.append((now.number, "environment variables", gone or "-", added or "-"))
    return rows


def began(record: RunRecord) -> float:
    """Return when the first attempt started or, if that is unknown, was created: unix seconds."""
    first = record.attempts[0]
    return parse_timestamp(first.started or first.created) or 0.0
