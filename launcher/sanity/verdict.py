"""Turn rank 0's records into a table, a list of problems and a JSON document. Pure."""

import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, make_dataclass
from typing import Any

from ..budget import parse_json
from ..logs.event_reader import parsed
from ..text import counted, numbered

MARK = b"@sanity "
SLOW_PAIR = 0.4  # fraction of the fastest pair's rate (the median pair may contain a slow host)
WIDTHS = (12, 12, 8, 11, 10, 10)  # characters, by column of the table
MODELS = (25 * 10**6, 125 * 10**6, 10**9)  # parameters: ResNet-50, GPT-2 small, a small LLM
TYPES = {"fp32": 4, "bf16": 2}  # bytes per gradient value
BACKWARD = 2 / 3  # the backward pass's share of a step's compute time
FASTER = 1.1  # factor by which four sockets must be faster to be recommended
MOST_TEXT = 16 << 20  # bytes of records; those of 300 nodes with all pairs take less
WORSE = 0.8  # fraction of the last run's best bus bandwidth; less is a problem


@dataclass
class FailedDial:
    source: int
    target: int
    address: str
    error: str


def _record(**fields: Any) -> type[Any]:
    return make_dataclass("Record", fields.items())


# The fields of each kind of record that collectives.py reports.
KINDS = {
    "world": _record(nodes=int, ranks=int, device=str),
    "mesh": _record(failed=list[FailedDial]),
    "right": _record(collective=str, verdict=str, ranks=list[int]),
    "size": _record(bytes=int, count=int, type=str, seconds=float, algbw=float, busbw=float),
    "pair": _record(source=int, target=int, gbs=float, rounds=list[float]),
    "late": _record(act=str, how=str, ranks=list[int], nodes=list[int]),
    "done": _record(transports=dict[str, int]),
}


class Report:
    """The records of rank 0. hosts: host names in order of node rank."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self.hosts = hosts
        self.run_id = ""  # of the run that the check is
        self.records: dict[str, list[dict[str, Any]]] = {}  # by kind, in order of arrival
        self._taken = 0  # bytes of records
        self.four_sockets: float | None = None  # GB/s at the largest size; None: not measured

    def take(self, text: bytes) -> bool:
        """Store a line of output if it is a well-formed record. Return whether it is."""
        if not text.startswith(MARK) or self._taken + len(text) > MOST_TEXT:
            return False
        try:
            document = parse_json(text[len(MARK) :])
            kind = document["kind"]
            record = asdict(parsed(KINDS[kind], document))
        except (ValueError, TypeError, KeyError):
            return False
        if kind == "pair":  # there may be no rounds, or impossible rates
            rounds = record["rounds"]
            if not (rounds and 0 < min(rounds) <= record["gbs"] <= max(rounds)):
                return False
        self._taken += len(text)
        self.records.setdefault(kind, []).append(record)
        return True

    def all(self, kind: str) -> list[dict[str, Any]]:
        return self.records.get(kind, [])

    def last(self, kind: str) -> dict[str, Any]:
        return (self.all(kind) or [{}])[-1]

    @property
    def sizes(self) -> list[dict[str, Any]]:
        return self.all("size")

    @property
    def is_complete(self) -> bool:
        """Whether all sizes were measured. The bandwidth at the smallest size alone means little."""
        return bool(self.sizes and self.all("done"))

    @property
    def transports(self) -> dict[str, int]:
        return dict(self.last("done").get("transports", {}))

    @property
    def busbw(self) -> float:
        """The best bus bandwidth of all sizes, in GB/s; 0 if none was measured."""
        return max((size["busbw"] for size in self.sizes), default=0.0)

    @property
    def latency(self) -> float:
        """The time of the smallest all-reduce, in seconds; 0 if none was measured."""
        return float(self.sizes[0]["seconds"]) if self.sizes else 0.0

    def name(self, node: int) -> str:
        return f"{self.hosts[node] if 0 <= node < len(self.hosts) else '?'} (node {node})"


def problems(
    report: Report, min_busbw: float | None, last: float | None, code: int = 0
) -> list[str]:
    """Return one line per problem. last: GB/s in the last run on these hosts. code: exit code."""
    lines = [*_unreached(report), *_late(report)]
    for right in report.all("right"):
        if right["verdict"] == "WRONG":
            lines.append(
                f"{right['collective']} gave wrong results on {numbered('rank', right['ranks'])}: "
                "memory or a network card may be faulty; run the vendor's diagnostics"
            )
    lines += slow_pairs(report)
    below = ""
    if min_busbw is not None and report.busbw < min_busbw:
        below = f"bus bandwidth {report.busbw:.3g} GB/s is below --min-busbw {min_busbw:g}"
    elif last is not None and report.busbw < WORSE * last:
        below = f"bus bandwidth is {report.busbw:.3g} GB/s"
        below += f", but was {last:.3g} in the last run on these hosts"
    if below and report.is_complete:
        lines.append(f"{below}: add `--pairwise` to find slow links")
    if not report.all("done") and not lines:
        lines.append("the check did not finish: see its output")
    if code and not lines:
        what = f"all measurements finished, but the run then exited with code {code}"
        lines.append(f"{what}: see `ddpctl logs {report.run_id}`")
    return lines


def _unreached(report: Report) -> list[str]:
    """Return one line per unreachable node, naming all nodes that cannot reach it."""
    by_target: dict[int, list[dict[str, Any]]] = {}
    for failed in report.last("mesh").get("failed", []):
        by_target.setdefault(failed["target"], []).append(failed)
    return [
        f"{report.name(target)} cannot be reached at {failed[0]['address']} from "
        f"{', '.join(report.name(each['source']) for each in failed)} ({failed[0]['error']}): "
        "check that its firewall lets the other nodes connect"
        for target, failed in sorted(by_target.items(), key=lambda item: -len(item[1]))
    ]


def _late(report: Report) -> list[str]:
    late = report.last("late")
    if not late:
        return []
    if not late["ranks"]:
        return [f"{late['act']} did not finish, although all ranks started it: check the network"]
    who, ranks = ", ".join(map(report.name, late["nodes"])), numbered("rank", late["ranks"])
    host = "that host" if len(late["nodes"]) == 1 else "those hosts"
    return [f"{who} {late['how']} {late['act']} ({ranks}): check {host}"]


def slow_pairs(report: Report) -> list[str]:
    """Return a line per link that was slow in every round, or one line if they all share a host.

    A link is slow if it is far below the fastest pair, and below the median of the other pairs by
    more than their rates vary.
    """
    pairs = report.all("pair")
    if len(pairs) < 3:
        return []
    best = max(pair["gbs"] for pair in pairs)
    slow = [pair for pair in pairs if max(pair["rounds"]) < SLOW_PAIR * best]
    others = [pair for pair in pairs if pair not in slow]
    usual = statistics.median(pair["gbs"] for pair in others)
    spread = max(max(pair["rounds"]) / min(pair["rounds"]) for pair in others)
    slow = [pair for pair in slow if max(pair["rounds"]) * spread < usual]
    if not slow:
        return []
    common = set.intersection(*({pair["source"], pair["target"]} for pair in slow))
    fastest = f"while the fastest pair reaches {best:.3g} GB/s"
    if len(common) == 1:
        rate = min(pair["gbs"] for pair in slow)
        host = report.name(common.pop())
        return [f"{host} is slow to and from other nodes: {rate:.3g} GB/s, {fastest}"]
    return [
        f"the link from {report.name(pair['source'])} to {report.name(pair['target'])} is slow: "
        f"{pair['gbs']:.3g} GB/s, {fastest}"
        for pair in slow
    ]


def models(report: Report, step: float | None) -> list[dict[str, Any]]:
    """Return how long it takes to all-reduce typical models' gradients, at the largest size's rate.

    step: the compute time of a step in seconds; if given, each row has the speedup over one node.
    If the compute time is below a row's `break_even`, the nodes together are slower than one. DDP's
    all-reduce overlaps with the backward pass, which is assumed to take two thirds of that time.
    """
    nodes = report.last("world").get("nodes", 0)
    if nodes < 2 or not report.sizes or report.sizes[-1]["bytes"] < 1:
        return []
    largest, rows = report.sizes[-1], []
    for parameters, (name, size) in itertools.product(MODELS, TYPES.items()):
        seconds = parameters * size * largest["seconds"] / largest["bytes"]
        row = {"parameters": parameters, "type": name, "seconds": seconds}
        row["break_even"] = seconds / (nodes - 1 + BACKWARD)
        if step is not None:
            in_all = step * (1 - BACKWARD) + max(step * BACKWARD, seconds)
            row["speedup"] = nodes * step / in_all
        rows.append(row)
    return rows


def _models_text(report: Report, step: float | None) -> Iterator[str]:
    nodes = report.last("world").get("nodes", 0)
    for row in models(report, step):
        model = f"{row['parameters'] // 10**6} million parameters, {row['type']}"
        line = f"# {model:<30} all-reduced in {row['seconds']:.3g} s; {nodes} nodes are slower than one"
        line += f" if a step takes less than {row['break_even']:.3g} s"
        if step is not None:
            line += f"; at {step:g} s, they do {row['speedup']:.2f} times the work of one"
        yield line


def sockets(report: Report) -> dict[str, float]:
    """Return the bus bandwidth in GB/s, by number of sockets per thread; empty if not measured."""
    if report.four_sockets is None or not report.sizes:
        return {}
    return {"1": report.sizes[-1]["busbw"], "4": report.four_sockets}


def text(report: Report, step: float | None = None) -> str:
    """Return all results as text. The sizes are in a table like that of nccl-tests."""
    world = report.last("world")
    counts = (counted(world.get(f"{noun}s", 0), noun) for noun in ("node", "rank"))
    lines = [f"# {', '.join(counts)}, {world.get('device', 'unknown device')}"]
    lines += [f"# {right['collective']:<16} {right['verdict']}" for right in report.all("right")]
    if report.sizes:
        lines.append("#" + _row("size", "count", "type", "time", "algbw", "busbw"))
        lines.append("#" + _row("(B)", "(elements)", "", "(us)", "(GB/s)", "(GB/s)"))
    for size in report.sizes:
        rates = (f"{size[name]:.3f}" for name in ("algbw", "busbw"))
        time = f"{size['seconds'] * 1e6:.1f}"
        lines.append(" " + _row(size["bytes"], size["count"], size["type"], time, *rates))
    if pairs := report.all("pair"):
        rates_of = {(pair["source"], pair["target"]): f"{pair['gbs']:.3f}" for pair in pairs}
        nodes = range(len(report.hosts))
        lines += ["#", "# node to node, GB/s"]
        lines.append("#  from \\ to" + "".join(f"{target:>9}" for target in nodes))
        for source in nodes:
            row = (f"{rates_of.get((source, target), '-'):>9}" for target in nodes)
            lines.append(f"#{source:>11}" + "".join(row))
    if report.transports:
        lines.append(f"# transport: {', '.join(report.transports)}")
    if report.sizes:
        latency, best = f"{report.latency * 1e6:.1f} us", f"{report.busbw:.3g} GB/s"
        lines.append(f"# latency {latency}, best bus bandwidth {best}")
    lines += _models_text(report, step)
    if gbs := sockets(report):
        line = f"# with 1 socket per thread: {gbs['1']:.3g} GB/s, with 4: {gbs['4']:.3g} GB/s"
        faster = gbs["4"] > FASTER * gbs["1"]
        lines.append(line + ("; set NCCL_NSOCKS_PERTHREAD=4 in job.env" if faster else ""))
    return "\n".join(lines)


def _row(*cells: object) -> str:
    return "".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True))


def document(report: Report, lines: Sequence[str], step: float | None = None) -> dict[str, Any]:
    """Return the JSON document of `sanity --json`, version 1. lines: the problems.

    Units: seconds, bytes, GB/s (1e9 bytes).
    """
    return {
        "version": 1,
        "ok": not lines,
        "problems": list(lines),
        "hosts": list(report.hosts),
        **report.last("world"),
        "unreached": report.last("mesh").get("failed", []),
        "collectives": report.all("right"),
        "sizes": report.sizes,
        "pairs": report.all("pair"),
        "late": report.last("late") or None,
        "transports": report.transports,
        "models": models(report, step),
        "sockets": sockets(report),
        "latency": report.latency,
        "busbw": report.busbw,
    }
