"""The result of a sanity check, from rank 0's records: a table, problems, a document. Pure."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MARK = b"@sanity "
SLOW_PAIR = 0.4  # of the fastest pair's rate; a slow host may be in most pairs
WORSE = 0.8  # of the last run's best bus bandwidth


@dataclass
class Report:
    """hosts: names by node rank. The lists hold the records in the order they came."""

    hosts: Sequence[str]
    world: dict[str, Any] = field(default_factory=dict)
    unreached: list[tuple[int, int, str, str]] = field(default_factory=list)
    rights: list[dict[str, Any]] = field(default_factory=list)
    sizes: list[dict[str, Any]] = field(default_factory=list)
    pairs: list[dict[str, Any]] = field(default_factory=list)
    late: dict[str, Any] | None = None
    transports: dict[str, int] = field(default_factory=dict)
    finished: bool = False

    def take(self, text: bytes) -> bool:
        """Adds a line of rank 0's output if it is a record."""
        if not text.startswith(MARK):
            return False
        record = json.loads(text[len(MARK) :])
        kind = record.pop("kind")
        if kind == "world":
            self.world = record
        elif kind == "mesh":
            self.unreached = [(a, b, host, why) for a, b, host, why in record["failed"]]
        elif kind == "late":
            self.late = record
        elif kind == "done":
            self.transports, self.finished = record["transports"], True
        else:
            {"right": self.rights, "size": self.sizes, "pair": self.pairs}[kind].append(record)
        return True

    @property
    def busbw(self) -> float:
        """The best bus bandwidth of the sweep, GB/s."""
        return max((size["busbw"] for size in self.sizes), default=0.0)

    @property
    def latency(self) -> float:
        """Of the smallest all-reduce, in seconds."""
        return float(self.sizes[0]["seconds"]) if self.sizes else 0.0

    def name(self, node: int) -> str:
        return f"{self.hosts[node]} (node {node})"


def problems(
    report: Report, min_busbw: float | None, last: float | None, code: int = 0
) -> list[str]:
    """One line per problem: what, where, remedy.

    last: the bus bandwidth of the last run on these hosts, GB/s. code: the run's exit code.
    """
    found = [*_unreached(report), *_late(report)]
    for right in report.rights:
        if right["verdict"] == "WRONG":
            ranks = ", ".join(str(rank) for rank in right["ranks"])
            found.append(
                f"{right['collective']} gave wrong results on rank {ranks}: suspect memory or the "
                "network card of that host; run its vendor's diagnostics"
            )
    found += slow_pairs(report)
    if min_busbw is not None and report.sizes and report.busbw < min_busbw:
        found.append(
            f"bus bandwidth {report.busbw:.3g} GB/s is below --min-busbw {min_busbw:g}: "
            "`--pairwise` names the slow link"
        )
    elif last is not None and report.sizes and report.busbw < WORSE * last:
        found.append(
            f"bus bandwidth {report.busbw:.3g} GB/s, the last run on these hosts had {last:.3g}: "
            "`--pairwise` names the slow link"
        )
    if not report.finished and not found:
        found.append("the check did not finish: its output says why")
    if code and not found:
        found.append(
            f"everything was measured, but then the run exited with {code}: see `ddpctl logs`"
        )
    return found


def _unreached(report: Report) -> list[str]:
    """Names each unreachable node once, with all nodes that cannot reach it."""
    by_target: dict[int, list[tuple[int, str, str]]] = {}
    for source, target, host, why in report.unreached:
        by_target.setdefault(target, []).append((source, host, why))
    lines = []
    for target, tries in sorted(by_target.items(), key=lambda item: -len(item[1])):
        sources = ", ".join(report.name(source) for source, _, _ in tries)
        lines.append(
            f"{report.name(target)} cannot be reached at {tries[0][1]} from {sources} "
            f"({tries[0][2]}): open the ports between the nodes in its firewall"
        )
    return lines


def _late(report: Report) -> list[str]:
    if report.late is None:
        return []
    if not report.late["ranks"]:
        return [f"{report.late['act']} hung with every rank in it: check the network"]
    who = ", ".join(report.name(node) for node in report.late["nodes"])
    ranks = ", ".join(str(rank) for rank in report.late["ranks"])
    return [f"{who} {report.late['how']} {report.late['act']} (rank {ranks}): check that host"]


def slow_pairs(report: Report) -> list[str]:
    """Names links that were slow in each round, or one host if it is in all of them.

    Slow: far below the fastest pair, and by more than the rates of the other pairs vary.
    """
    if len(report.pairs) < 3:
        return []
    best = max(pair["gbs"] for pair in report.pairs)
    slow = [pair for pair in report.pairs if max(pair["rounds"]) < SLOW_PAIR * best]
    others = [pair for pair in report.pairs if pair not in slow]
    usual = statistics.median(pair["gbs"] for pair in others)
    spread = max(max(pair["rounds"]) / min(pair["rounds"]) for pair in others)
    slow = [pair for pair in slow if max(pair["rounds"]) * spread < usual]
    if not slow:
        return []
    ends = [{pair["source"], pair["target"]} for pair in slow]
    common = set.intersection(*ends)
    rates = f"{min(pair['gbs'] for pair in slow):.3g} GB/s, the fastest pair {best:.3g}"
    if len(common) == 1:
        return [f"{report.name(common.pop())} is slow to and from the others: {rates}"]
    return [
        f"the link {report.name(pair['source'])} to {report.name(pair['target'])} is slow: "
        f"{pair['gbs']:.3g} GB/s, the fastest pair {best:.3g}"
        for pair in slow
    ]


def text(report: Report) -> str:
    """A table with nccl-tests' columns, and the other results around it."""
    world = report.world
    lines = [f"# {world.get('nodes')} nodes, {world.get('ranks')} ranks, {world.get('device')}"]
    lines += [f"# {right['collective']:<16} {right['verdict']}" for right in report.rights]
    if report.sizes:
        lines.append(f"#{'size':>12}{'count':>12}{'type':>8}{'time':>11}{'algbw':>10}{'busbw':>10}")
        lines.append(
            f"#{'(B)':>12}{'(elements)':>12}{'':>8}{'(us)':>11}{'(GB/s)':>10}{'(GB/s)':>10}"
        )
        lines += [_row(size) for size in report.sizes]
    if report.pairs:
        lines += ["#", "# node to node, GB/s", *_matrix(report)]
    if report.transports:
        lines.append(f"# transport: {', '.join(report.transports)}")
    if report.sizes:
        lines.append(
            f"# latency {report.latency * 1e6:.1f} us, best bus bandwidth {report.busbw:.3g} GB/s"
        )
    return "\n".join(lines)


def _row(size: Mapping[str, Any]) -> str:
    return (
        f" {size['bytes']:>12}{size['count']:>12}{size['type']:>8}{size['seconds'] * 1e6:>11.1f}"
        f"{size['algbw']:>10.3f}{size['busbw']:>10.3f}"
    )


def _matrix(report: Report) -> list[str]:
    rates = {(pair["source"], pair["target"]): pair["gbs"] for pair in report.pairs}
    count = report.world.get("nodes", 0)
    head = "#  from \\ to" + "".join(f"{target:>9}" for target in range(count))
    rows = [
        f"#{source:>11}"
        + "".join(
            f"{rates[source, target]:>9.3f}" if (source, target) in rates else f"{'-':>9}"
            for target in range(count)
        )
        for source in range(count)
    ]
    return [head, *rows]


def document(report: Report, found: Sequence[str]) -> dict[str, Any]:
    """sanity --json, version 1. Seconds, bytes and GB/s (1e9 bytes)."""
    return {
        "version": 1,
        "ok": not found,
        "problems": list(found),
        "hosts": list(report.hosts),
        **report.world,
        "unreached": [
            {"source": a, "target": b, "address": host, "error": why}
            for a, b, host, why in report.unreached
        ],
        "collectives": report.rights,
        "sizes": report.sizes,
        "pairs": report.pairs,
        "late": report.late,
        "transports": report.transports,
        "latency": report.latency,
        "busbw": report.busbw,
    }
