"""What follows from a sanity check's records: the table, and the names of slow or missing nodes."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import UsageError
from launcher.hosts import Cluster
from launcher.hosts import parse as parse_hosts
from launcher.logs.log_entry import OutputLines
from launcher.outcomes import Exit, Outcome, RunState
from launcher.sanity import sanity as command
from launcher.sanity import verdict
from launcher.sanity.sanity import SanityOptions, plot, size_of, two_containers
from launcher.sanity.verdict import MARK, Report, document, models, problems, text
from launcher.start.request import Request
from launcher.terminal.console import Console


def report(*records: dict[str, object], nodes: int = 3) -> Report:
    found = Report([f"h{n}" for n in range(nodes)])
    for record in [{"kind": "world", "nodes": nodes, "ranks": nodes, "device": "CPU"}, *records]:
        assert found.take(MARK + json.dumps(record).encode())
    return found


def size(count: int, seconds: float, busbw: float) -> dict[str, object]:
    return {"kind": "size", "bytes": count * 4, "count": count, "type": "float",
            "seconds": seconds, "algbw": busbw * 0.75, "busbw": busbw}  # fmt: skip


def pairs(slow: set[frozenset[int]], nodes: int = 3) -> list[dict[str, object]]:
    return [
        pair(a, b, [0.1] * 3 if {a, b} in slow else [1.0] * 3)
        for a in range(nodes)
        for b in range(nodes)
        if a != b
    ]


def pair(source: int, target: int, rounds: list[float]) -> dict[str, object]:
    gbs = statistics.median(rounds)
    return {"kind": "pair", "source": source, "target": target, "gbs": gbs, "rounds": rounds}


DONE = {"kind": "done", "transports": {"sockets": 4}}


def test_containers_are_those_of_the_only_host() -> None:
    cluster = two_containers(parse_hosts("hosts: [{host: local, gpus: 0}]", "h.yaml"), None, 2)
    assert [host.host for host in cluster.hosts] == ["local", "local"]


def test_containers_share_the_gpus_of_all_entries_of_the_host() -> None:
    entries = "{host: local, gpus: [0, 1]}, {host: local, gpus: [4, 5]}"
    cluster = two_containers(parse_hosts(f"hosts: [{entries}]", "h.yaml"), "local", 2)
    assert [host.gpus for host in cluster.hosts] == [(0, 1), (4, 5)]
    assert cluster.job.nproc_per_node == 2


def test_a_failure_is_not_hidden_by_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Request] = []

    def run(request: Request, *_: object) -> Outcome:
        asked.append(request)
        return Outcome(RunState.SUCCEEDED)

    monkeypatch.setattr(command, "run_attempt", run)
    cluster = parse_hosts("hosts: [a]\njob: {max_restarts: 3}", "hosts.yaml")
    options = SanityOptions(30.0, 64, True, None, None, None)
    command.measure(cluster, options, Report(["a"]), Console())
    assert asked[0].cluster.job.max_restarts == 0


def test_all_is_well() -> None:
    found = report({"kind": "mesh", "failed": []}, size(2, 1e-5, 0.1), size(1000, 1e-3, 2.0), DONE)
    assert problems(found, min_busbw=1.5, last=2.1) == []
    assert (found.busbw, found.latency) == (2.0, 1e-5)
    assert document(found, [])["ok"] is True


def test_the_table_has_the_columns_of_nccl_tests() -> None:
    lines = text(report(size(1000, 1e-3, 2.0), DONE)).splitlines()
    head = next(line for line in lines if "busbw" in line)
    assert head.split() == ["#", "size", "count", "type", "time", "algbw", "busbw"]
    row = next(line for line in lines if line.startswith(" "))
    assert row.split() == ["4000", "1000", "float", "1000.0", "1.500", "2.000"]


def test_what_the_bandwidth_means_for_training() -> None:
    found = report(size(250_000, 0.01, 1.0), DONE, nodes=2)  # 1e6 bytes in 10 ms: 0.1 GB/s
    rows = {(row["parameters"], row["type"]): row for row in models(found, step=0.6)}
    assert len(rows) == 6
    fp32, bf16 = rows[25_000_000, "fp32"], rows[25_000_000, "bf16"]
    assert fp32["seconds"] == pytest.approx(1.0)
    assert fp32["break_even"] == pytest.approx(0.6)
    assert fp32["speedup"] == pytest.approx(1.0)  # a third of 0.6 s, then the all-reduce: as slow
    assert bf16["speedup"] == pytest.approx(2 * 0.6 / (0.2 + 0.5))
    hidden = models(found, step=3.0)[0]  # by the backward pass
    assert hidden["speedup"] == pytest.approx(2.0)
    assert "speedup" not in models(found, None)[0]
    line = next(
        line for line in text(found, 0.6).splitlines() if "25 million parameters, fp32" in line
    )
    assert "in 1 s; 2 nodes are slower than one if a step takes less than 0.6 s" in line
    assert line.endswith("; at 0.6 s, they do 1.00 times the work of one")
    assert models(report(size(1, 1, 1.0), DONE, nodes=1), None) == []
    assert models(report(), None) == []


@pytest.mark.parametrize(("four", "advice"), [(2.5, True), (2.1, False)])
def test_four_sockets_per_thread_are_advised_where_they_are_faster(
    four: float, advice: bool
) -> None:
    found = report(size(8, 1, 0.1), size(1000, 1e-3, 2.0), DONE)
    assert document(found, [])["sockets"] == {}
    found.four_sockets = four
    assert document(found, [])["sockets"] == {"1": 2.0, "4": four}
    assert ("NCCL_NSOCKS_PERTHREAD=4" in text(found)) == advice


def test_bandwidth_below_the_minimum_or_the_last_run_is_reported() -> None:
    found = report(size(1000, 1e-3, 2.0), DONE)
    assert "below --min-busbw 3" in problems(found, 3.0, None)[0]
    assert "but was 2.6 in the last run on these hosts" in problems(found, None, 2.6)[0]
    assert problems(found, None, 2.4) == []


def test_the_bandwidth_of_small_messages_only_is_not_judged_if_the_check_broke_off() -> None:
    late = {"kind": "late", "act": "all-reduce of 32 bytes", "how": "did not start", "ranks": [1]}
    found = report(size(2, 1e-5, 0.1), {**late, "nodes": [1]})
    [line] = problems(found, 3.0, 2.6)
    assert "did not start" in line


def test_the_host_in_all_slow_pairs_is_named() -> None:
    slow = {frozenset({0, 2}), frozenset({1, 2})}
    [line] = problems(report(size(1, 1, 1.0), *pairs(slow), DONE), None, None)
    assert "h2 (node 2) is slow to and from other nodes" in line


def test_one_slow_link_is_named_by_its_ends() -> None:
    lines = problems(
        report(size(1, 1, 1.0), *pairs({frozenset({0, 1})}, 4), DONE, nodes=4), None, None
    )
    assert len(lines) == 2
    assert "to h1 (node 1) is slow: 0.1 GB/s, while the fastest pair reaches 1 GB/s" in lines[0]


@pytest.mark.parametrize(
    ("link", "other", "named"),
    [
        ([0.1, 0.1, 0.1], [1.0, 0.9, 1.0], True),
        ([0.1, 0.1, 0.5], [1.0, 1.0, 1.0], False),  # not each time, though its median is slow
        ([0.3, 0.3, 0.3], [1.0, 0.2, 1.0], False),  # the others vary as much
    ],
)
def test_a_link_is_slow_only_each_time_and_beyond_the_spread_of_the_others(
    link: list[float], other: list[float], named: bool
) -> None:
    measured = [
        pair(a, b, link if (a, b) == (0, 1) else other) for a, b in permutations(range(3), 2)
    ]
    lines = problems(report(size(1, 1, 1.0), *measured, DONE), None, None)
    assert bool(lines) == named, lines


def test_a_node_behind_a_firewall_is_named_once() -> None:
    failed = [
        {"source": source, "target": 2, "address": "10.0.0.3", "error": "timed out"}
        for source in (0, 1)
    ]
    [line] = problems(report({"kind": "mesh", "failed": failed}), None, None)
    assert line.startswith(
        "h2 (node 2) cannot be reached at 10.0.0.3 from h0 (node 0), h1 (node 1)"
    )


def test_the_node_that_did_not_start_is_named() -> None:
    late = {
        "kind": "late",
        "act": "all-gather",
        "how": "did not start",
        "ranks": [1],
        "nodes": [1],
    }
    [line] = problems(report(late), None, None)
    assert line.startswith("h1 (node 1) did not start all-gather (rank 1): check that host")
    [line] = problems(report({**late, "ranks": [1, 2], "nodes": [1, 2]}), None, None)
    assert line.endswith("did not start all-gather (ranks 1-2): check those hosts")


def test_wrong_results_and_a_check_that_broke_off() -> None:
    wrong = {"kind": "right", "collective": "broadcast", "verdict": "WRONG", "ranks": [2]}
    assert "broadcast gave wrong results on rank 2" in problems(report(wrong, DONE), None, None)[0]
    assert "did not finish" in problems(report(), None, None)[0]
    assert "exited with code 1" in problems(report(DONE), None, None, code=1)[0]


def test_the_last_result_of_the_same_hosts_is_remembered_and_sockets_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    options = SanityOptions(30.0, 64, True, None, None, None)
    rates = iter([2.0, 3.0, *([1.0, 0.5] * 2), 0.1, 1.0, 0.5])  # with one socket and with four
    asked: list[tuple[bool, bool, str]] = []
    end = [DONE]

    def measure(cluster: Cluster, options: SanityOptions, found: Report, _: Console) -> Exit:
        four = cluster.job.env.get("NCCL_NSOCKS_PERTHREAD", "")
        asked.append((options.pairwise, options.largest_only, four))
        for record in (size(1000, 1e-3, next(rates)), *end):
            assert found.take(MARK + json.dumps(record).encode())
        return Exit.DONE

    monkeypatch.setattr(command, "measure", measure)

    def checked(*hosts: str, max_bytes: int = 64) -> tuple[Exit, dict[str, Any]]:
        cluster = parse_hosts(json.dumps({"hosts": hosts}), "hosts.yaml")
        sized = replace(options, max_bytes=max_bytes)
        code = command.sanity(cluster, sized, Console(), as_json=True)
        return code, json.loads(capsys.readouterr().out)

    code, first = checked("a", "b")
    assert (code, first["problems"], first["sockets"]) == (Exit.DONE, [], {"1": 2.0, "4": 3.0})
    assert asked == [(True, False, ""), (False, True, "4")]
    assert checked("a", "c")[0] is Exit.DONE
    assert checked("a", "b", max_bytes=8)[0] is Exit.DONE  # small messages are slower
    end.clear()
    assert checked("a", "b")[0] is Exit.FAILED  # it broke off
    end.append(DONE)
    code, worse = checked("a", "b")
    assert code is Exit.FAILED
    assert "but was 2 in the last run on these hosts" in worse["problems"][0]


@pytest.mark.parametrize("text", ["big", "0"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=f"--max-size {text}: .*64m"):
        size_of(text)


@pytest.mark.parametrize("name", ["no/such/folder/a.png", "a.xyz"])
def test_a_plot_that_cannot_be_written_is_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"--plot .*: cannot be written: "):
        plot(report(size(1000, 1e-3, 2.0)), tmp_path / name)


def test_an_unreachable_host_is_in_the_json_document_too(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.yaml"
    hosts.write_text("hosts: [{host: 127.0.0.1, port: 1, gpus: 0}]\njob: {image: x}\n")
    done = subprocess.run(
        [sys.executable, "-m", "launcher", "sanity", str(hosts), "--json"],
        env={**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    found = json.loads(done.stdout)
    assert (done.returncode, found["ok"], found["sizes"]) == (4, False, [])
    [problem] = found["problems"]
    assert problem.startswith("127.0.0.1: ssh: connection refused")
    assert problem in done.stderr


@pytest.mark.parametrize(
    "line",
    ["[[[", "{}", "7", '{"kind":"size"}', "[" * 100_000, '{"kind": [1]}',
     '{"kind": "pair", "source": 0, "target": 1, "gbs": 1, "rounds": []}',
     '{"kind": "pair", "source": 0, "target": 1, "gbs": 9, "rounds": [1.0]}',
     '{"kind": "size", "bytes": 1, "count": 1, "type": "f", "seconds": 1, "algbw": 1, "busbw": NaN}'],
)  # fmt: skip
def test_a_line_that_only_looks_like_a_record_is_output(line: str) -> None:
    found = Report(["h0"])
    assert not found.take(MARK + line.encode())
    assert found.records == {}


def test_a_host_that_reports_without_end_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "MOST_TEXT", 1000)
    found, record = Report(["h0"]), b'@sanity {"kind": "done", "transports": {}}'
    assert [found.take(record) for _ in range(100)].count(True) == 1000 // len(record)


@pytest.mark.parametrize(("node_rank", "count"), [(0, 1), (1, 0)])
def test_only_node_0_reports_results(node_rank: int, count: int) -> None:
    """The journal of another host may say that rank 0 wrote a line."""
    found = Report(["h0", "h1"])
    line = b'@sanity {"kind": "done", "transports": {}}'
    console = command.console_for_run(found, Console())
    console.show([OutputLines("h", node_rank, 1.0, 0, [line])])
    assert len(found.all("done")) == count


def test_node_numbers_that_the_run_does_not_have_break_nothing() -> None:
    far = 10**9
    failed = [{"source": -far, "target": far, "address": "x", "error": "y"}]
    found = report({"kind": "mesh", "failed": failed}, pair(far, 0, [1.0]), nodes=1)
    assert problems(found, None, None)
    assert len(text(found)) < 1000
