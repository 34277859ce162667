"""`ddpctl report`: the page holds what is known of a run, escaped, and loads nothing."""

from __future__ import annotations

import dataclasses
import html
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.diagnosis.first_failure import FirstFailure
from launcher.report.curves import MOST_POINTS, chart_svg, colour_of, thinned
from launcher.report.making import without_secrets
from launcher.report.numbers import Chart, Curve, charts, charts_by_host
from launcher.report.page import page
from launcher.runs.record import AttemptRecord, NodeRecord, RunFolder, RunRecord

EVIL = "<script>document.title='taken'</script><img src=\"http://evil.example/x\">&'"

TIMES = ("2026-11-21T05:00:00.000Z", "2026-11-21T05:00:01.000Z", "2026-11-21T05:00:40.000Z")


def record_of(evil: str = "plain") -> RunRecord:
    failure = FirstFailure(
        host=f"gpu2{evil}",
        node_rank=1,
        rank=3,
        local_rank=None,
        exit_code=1,
        signal=None,
        kind="exception",
        time="2026-11-21T05:00:30.000Z",
        message=f"ValueError: boom {evil}",
        excerpt=f"Traceback {evil}\x1b[31m\n  line two",
        remedy=f"look at {evil}",
    )
    nodes = [NodeRecord(0, f"gpu1{evil}", "/r", "FAILED", 1), NodeRecord(1, "gpu2", "/r")]
    attempts = [
        AttemptRecord(
            1, "FAILED", TIMES[0], nodes, 4, "10.0.0.1", 29500, TIMES[1], TIMES[2], failure
        ),
        AttemptRecord(2, "SUCCEEDED", TIMES[2], nodes, 4, "10.0.0.1", 29500, TIMES[2], TIMES[2]),
    ]
    return RunRecord(
        run_id="20261121-050000-abcd",
        name=f"night{evil}",
        owner=f"me{evil}",
        engine="docker",
        hosts=["gpu1", "gpu2"],
        image=f"image{evil}",
        image_digest="sha256:1",
        dataset_digest=None,
        workdir_digest=None,
        command=["train.py", "two words", evil],
        stop_timeout=60,
        attempts=attempts,
    )


def metrics_lines() -> bytes:
    lines = [{"kind": "start", "attempt": 1}]
    lines += [
        {"kind": "train", "step": step, "loss": 2.5 - step / 100, "img_s": 1000 + step}
        for step in range(0, 100, 10)
    ]
    lines += [{"kind": "eval", "step": 100, "top1": 0.625, "loss": 1.25}]
    lines += [{"kind": "train", "step": 110, "loss": None}, {"kind": "train", "step": 120}]
    return "\n".join(json.dumps(line) for line in lines).encode() + b'\n{"kind": "train", "st'


def test_charts_are_read_from_whole_lines_and_finite_numbers() -> None:
    loss, accuracy, throughput = charts(metrics_lines() + b"\n[1]\n" + b'{"loss": NaN, "step": 1}')
    assert [curve.name for curve in loss.curves] == ["train", "eval"]
    assert loss.curves[0].points[0] == (0, 2.5) and len(loss.curves[0].points) == 10
    assert accuracy.curves[0].points == ((100, 0.625),)
    assert throughput.curves[0].points[-1] == (90, 1090)


def test_a_resumed_run_has_a_curve_for_each_attempt() -> None:
    text = b"".join(
        json.dumps(line).encode() + b"\n"
        for attempt in (1, 3)
        for line in (
            {"kind": "start", "attempt": attempt},
            {"kind": "train", "step": attempt, "loss": 1.0},
        )
    )
    (loss,) = charts(text)
    assert [curve.name for curve in loss.curves] == ["train, attempt 1", "train, attempt 3"]


def test_each_rank_has_its_curves_beside_that_of_all() -> None:
    own = {"loss": [1.5, 0.5], "img_s": [10.0, 20.0]}
    train = {"kind": "train", "step": 5, "loss": 1.0, "img_s": 30.0, "ranks": own}
    test = {"kind": "eval", "step": 5, "top1": 0.5, "ranks": {"top1": [0.25, None]}}
    loss, accuracy, throughput = charts(f"{json.dumps(train)}\n{json.dumps(test)}\n".encode())
    drawn = {curve.name: curve.points for curve in loss.curves}
    assert list(drawn) == ["train", "train of rank 0", "train of rank 1"]
    assert drawn["train of rank 1"] == ((5, 0.5),)
    assert [curve.name for curve in accuracy.curves] == ["eval", "eval of rank 0"]
    assert [curve.points[0][1] for curve in throughput.curves] == [30.0, 10.0, 20.0]
    many = {"kind": "train", "step": 5, "loss": 1.0, "ranks": {"loss": [1.0] * 64}}
    assert len(charts(json.dumps(many).encode())[0].curves) == 1


def test_hosts_that_all_wrote_metrics_have_curves_of_their_own() -> None:
    line = b'{"kind": "train", "step": 1, "loss": 1.0}\n'
    (loss,) = charts_by_host({"gpu1": line, "gpu2": b"", "gpu3": line})
    assert [curve.name for curve in loss.curves] == ["train, gpu1", "train, gpu3"]
    (alone,) = charts_by_host({"gpu1": b"", "gpu2": line})
    assert [curve.name for curve in alone.curves] == ["train"]


def test_other_scripts_have_no_charts() -> None:
    assert charts(b"") == () and charts(b"hello\n{}\n") == ()


def test_a_curve_of_one_point_or_of_equal_values_is_drawn() -> None:
    svg = chart_svg(Chart("flat", (Curve("a", ((5, 1.0),)), Curve("b", ((5, 1.0), (6, 1.0))))))
    assert svg.count("<polyline") == 2 and "nan" not in svg


def test_a_long_curve_is_thinned_and_keeps_its_ends() -> None:
    points = tuple((float(x), 1.0) for x in range(100_001))
    kept = thinned(points)
    assert len(kept) <= MOST_POINTS + 1
    assert (kept[0], kept[-1]) == (points[0], points[-1])


class Seen(HTMLParser):
    """Every tag that a browser would see, with its attributes; and whether they nest."""

    VOID = ("meta", "rect", "path", "circle", "br")

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_nothing_of_the_users_is_markup_and_nothing_is_loaded() -> None:
    made = page(record_of(EVIL), charts(metrics_lines()), EVIL, [EVIL], EVIL)
    seen = Seen()
    seen.feed(made)
    names = {tag for tag, _ in seen.tags}
    assert not names & {"script", "img", "link", "iframe", "object", "a", "form", "base"}
    assert seen.open == []
    loading = {"src", "href", "xlink:href", "srcset", "data", "style"}
    assert not [attrs for _, attrs in seen.tags if loading & set(attrs)]
    assert not re.search(r"url\(|@import", made.split("</style>")[0])
    assert "\x1b" not in made
    assert html.escape(EVIL) in made


PIECES = ["<meta http-equiv=refresh content=0>", "</td>", "</title>", "</style>", "<!--", "-->",
          "<svg onload=x>", '"', "'", " onclick=x ", "<", ">", "&", "&lt;", "\0", "x"]  # fmt: skip
HOSTILE = st.one_of(st.lists(st.sampled_from(PIECES)).map("".join), st.text()).map("x".__add__)


def structure(html: str) -> list[tuple[str, list[str]]]:
    """Every element with the names of its attributes."""
    seen = Seen()
    seen.feed(html)
    seen.close()
    return [(tag, sorted(attributes)) for tag, attributes in seen.tags]


def altered(value: Any, string: Callable[[], str]) -> Any:
    """The value with other strings, and strings in place of its numbers."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return dataclasses.replace(
            value, **{name: altered(entry, string) for name, entry in fields.items()}
        )
    if isinstance(value, dict):
        return {key: altered(entry, string) for key, entry in value.items()}
    if isinstance(value, list):
        return [altered(entry, string) for entry in value]
    return value if value is None or value in ("docker", *TIMES) else string()


@given(st.data())
def test_no_element_and_no_attribute_comes_from_data(data: st.DataObject) -> None:
    def made(string: Callable[[], str]) -> list[tuple[str, list[str]]]:
        curves = tuple(Curve(string(), ((0.0, 1.0), (1.0, 2.0))) for _ in range(2))
        record = altered(record_of(), string)
        return structure(page(record, [Chart(string(), curves)], string(), [string()], TIMES[2]))

    assert made(lambda: data.draw(HOSTILE)) == made(lambda: "plain")


def test_one_node_has_failed_and_the_others_were_stopped_or_cancelled() -> None:
    record = record_of()
    attempt = record.attempts[0]
    attempt.nodes = [NodeRecord(rank, f"gpu{rank}", "/r", "FAILED", 1) for rank in range(3)]
    attempt.nodes[2].state = "SUCCEEDED"
    attempt.nodes[2].exit_code = 0
    attempt.settle_nodes()
    made = page(record, [], "", [], TIMES[2])
    assert "<td>gpu0</td><td>stopped, as node 1 failed</td><td></td>" in made
    assert "<td>gpu1</td><td>failed</td><td>1</td>" in made
    assert "<td>gpu2</td><td>succeeded</td><td>0</td>" in made
    attempt.state, attempt.first_failure = "CANCELLED", None
    attempt.nodes[1].state = attempt.nodes[0].state = "FAILED"
    attempt.settle_nodes()
    made = page(record, [], "", [], TIMES[2])
    assert "<td>0-1</td><td>gpu[0-1]</td><td>cancelled</td><td>1</td>" in made


def test_64_nodes_are_a_row_for_each_outcome_with_the_failed_one_first() -> None:
    record = record_of()
    [attempt, _] = record.attempts
    record.attempts = [attempt]
    attempt.nodes = [NodeRecord(n, f"gpu{n:02}", "/r", "FAILED", 1) for n in range(64)]
    attempt.settle_nodes()
    hosts = page(record, [], "", [], TIMES[2]).split("<h2>Hosts</h2>")[1].split("<h2>")[0]
    assert re.findall("<tr><td>.*?</tr>", hosts) == [
        "<tr><td>1</td><td>1</td><td>gpu01</td><td>failed</td><td>1</td></tr>",
        "<tr><td>1</td><td>0,2-63</td><td>gpu[00,02-63]</td>"
        "<td>stopped, as node 1 failed</td><td></td></tr>",
    ]


def test_the_page_tells_the_run() -> None:
    made = html.unescape(page(record_of(), charts(metrics_lines()), "hosts: [gpu1]", [], "now"))
    for told in (
        "20261121-050000-abcd",
        "First failure of attempt 1",
        "ValueError: boom",
        "10.0.0.1:29500",
        "4 on 2 nodes",
        "attempt 2",
        "39.0 s",
        "0.625 at the end",
        "ddpctl launch hosts.yaml --image imageplain -- train.py 'two words' plain",
        "hosts: [gpu1]",
    ):
        assert told in made


def test_no_value_of_the_environment_is_on_the_page(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text("hosts: [gpu1]\njob:\n  env: {TOKEN: s3cret}\n  image: x\n")
    text = without_secrets(path)
    assert "s3cret" not in text and "TOKEN" in text and "image: x" in text


def local_run(tmp_path: Path) -> dict[str, str]:
    """A finished run of a `local` host, as it stands on this machine; gives the environment."""
    record = record_of(EVIL)
    run_dir = tmp_path / ".ddpctl" / "runs" / record.run_id
    record.engine = "process"
    record.command = ["-m", "trainer"]
    for attempt in record.attempts:
        attempt.nodes = [NodeRecord(0, "local", str(run_dir), attempt.state, 0)]
    folder = RunFolder(tmp_path / "state" / "ddpctl" / "runs" / record.run_id)
    folder.save(record)
    job = {"engine": "process", "command": ["-m", "trainer"], "env": {"TOKEN": "s3cret"}}
    hosts = {"hosts": [{"host": "local", "gpus": 0}], "job": job}
    folder.hosts_file.write_text(json.dumps(hosts))
    (run_dir / "output").mkdir(parents=True)
    (run_dir / "output" / "metrics.jsonl").write_bytes(metrics_lines())
    root = str(Path(__file__).parents[3])
    state = str(tmp_path / "state")
    return {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": state, "PYTHONPATH": root}


def report(env: dict[str, str], cwd: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "launcher", "report", *argv]
    return subprocess.run(
        command, env=env, cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_command_writes_the_page_and_prints_its_path(tmp_path: Path) -> None:
    env = local_run(tmp_path)
    done = report(env, tmp_path, "-o", "out.html")
    assert (done.returncode, done.stdout) == (0, "out.html\n"), done.stderr
    made = (tmp_path / "out.html").read_text()
    assert "0.625 at the end" in made and "s3cret" not in made
    done = report(env, tmp_path, "-o", "no/such/folder/out.html")
    assert done.returncode == 2 and "no/such/folder/out.html: cannot be written" in done.stderr


def test_a_host_that_is_not_seen_hides_no_other(tmp_path: Path) -> None:
    env = local_run(tmp_path)
    (folder,) = (tmp_path / "state" / "ddpctl" / "runs").iterdir()
    record = RunFolder(folder).load()
    for attempt in record.attempts:
        attempt.nodes.insert(0, NodeRecord(0, "127.0.0.1", "/gone", attempt.state, 0))
        attempt.nodes[1].node_rank = 1
    RunFolder(folder).save(record)
    there = {"host": "127.0.0.1", "port": 1, "gpus": 0}
    hosts = {"hosts": [there, {"host": "local", "gpus": 0}], "job": {"image": "x"}}
    (folder / "hosts.yaml").write_text(json.dumps(hosts))
    done = report(env, tmp_path, "-o", "out.html")
    assert (done.returncode, done.stdout) == (4, "out.html\n"), done.stderr
    assert "no answer from 127.0.0.1: connection refused" in done.stderr
    made = (tmp_path / "out.html").read_text()
    assert "0.625 at the end" in made and "Curves of 127.0.0.1 may be missing" in made


def browser() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("no chromium: run scripts/test-setup")
        pytest.skip("NO BROWSER: the report was not seen; run scripts/test-setup")
    return found


@pytest.mark.real
def test_a_real_browser_shows_the_page(tmp_path: Path) -> None:
    env = local_run(tmp_path)
    assert report(env, tmp_path, "-o", "out.html").returncode == 0
    flags = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --window-size=900,2400"
    argv = [browser(), *flags.split(), f"--user-data-dir={tmp_path / 'profile'}"]
    url = (tmp_path / "out.html").as_uri()
    env = {**env, "HOME": str(tmp_path)}
    picture = tmp_path / "page.png"
    done = subprocess.run(
        [*argv, f"--screenshot={picture}", "--dump-dom", url],
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "<title>20261121-050000-abcd: SUCCEEDED</title>" in done.stdout  # no script changed it
    assert "<img" not in done.stdout and "<script" not in done.stdout
    assert done.stdout.count("<polyline") == 4
    assert "Refused to" not in done.stderr and "net::ERR" not in done.stderr


def test_no_two_curves_share_a_colour() -> None:
    curves = tuple(Curve(str(n), ((n, 1.0),)) for n in range(64))
    svg = chart_svg(Chart("many", curves))
    assert len(set(re.findall('stroke="([^"]*)" stroke-width', svg))) == len(curves)
    assert all(f'fill="{colour_of(n)}"' in svg for n in range(64))
