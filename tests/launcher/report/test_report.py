"""`ddpctl report`: the page holds what is known of a run, escaped, and loads nothing."""

from __future__ import annotations

import dataclasses
import html
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reported_run import EVIL, TIMES, journals_of, metrics_lines, record_of, shown

from launcher.outcomes import NodeState, RunState
from launcher.report.charts import Chart, Curve
from launcher.report.journals import parse_journals
from launcher.report.page import comparison, page, plan
from launcher.report.report import without_secrets
from launcher.runs.record import NodeRecord
from launcher.runs.run_folder import RunFolder


class Seen(HTMLParser):
    """Every tag that a browser would see, with its attributes; and whether they nest."""

    VOID = ("meta", "path", "circle", "br", "input")

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


@pytest.mark.parametrize("made", [page(shown(EVIL)), comparison(shown(EVIL), shown(EVIL))])
def test_nothing_of_the_users_is_markup_and_nothing_is_loaded(made: str) -> None:
    seen = Seen()
    seen.feed(made)
    names = {tag for tag, _ in seen.tags}
    assert not names & {"script", "img", "link", "iframe", "object", "form", "base"}
    assert seen.open == []
    sections = {f"#{attrs['id']}" for tag, attrs in seen.tags if tag == "section"}
    assert {attrs.pop("href") for tag, attrs in seen.tags if tag == "a"} == sections
    loading = {"src", "href", "xlink:href", "srcset", "data", "style"}
    assert not [attrs for _, attrs in seen.tags if loading & set(attrs)]
    assert not re.search(r"url\(|@import", made.split("</style>")[0])
    assert "\x1b" not in made
    assert html.escape(EVIL) in made


def test_an_attempt_that_another_machine_started_has_no_master_in_the_plan() -> None:
    """The hosts do not report it."""
    view = shown()
    assert plan(view)["master"] == "10.0.0.1:29500"
    view.record.attempt.master_addr, view.record.attempt.master_port = "", 0
    assert plan(view)["master"] == ""


PIECES = ["<meta http-equiv=refresh content=0>", "</td>", "</title>", "</style>", "<!--", "-->",
          "<svg onload=x>", '"', "'", " onclick=x ", "<", ">", "&", "&lt;", "\0", "x"]  # fmt: skip
HOSTILE = st.one_of(st.lists(st.sampled_from(PIECES)).map("".join), st.text()).map("x".__add__)


def structure(html: str) -> list[tuple[str, list[str]]]:
    """Every element with the names of its attributes."""
    seen = Seen()
    seen.feed(html)
    seen.close()
    return [(tag, sorted(attributes)) for tag, attributes in seen.tags]


def altered(value: Any, string: Callable[[], str], numbers: bool) -> Any:
    """The value with other strings; numbers: also in place of its numbers."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return dataclasses.replace(
            value, **{name: altered(entry, string, numbers) for name, entry in fields.items()}
        )
    if isinstance(value, dict):
        return {key: altered(entry, string, numbers) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(altered(entry, string, numbers) for entry in value)
    if value is None or value in ("docker", *TIMES) or not (numbers or isinstance(value, str)):
        return value
    return string()


@pytest.mark.slow
@settings(max_examples=25)  # each makes every page four times
@given(st.data())
def test_no_element_and_no_attribute_comes_from_data(data: st.DataObject) -> None:
    def made(hostile: Callable[[], str]) -> list[tuple[str, list[str]]]:
        count = itertools.count()

        def string() -> str:  # equal ones would share a color or a row
            return f"{next(count)}{hostile()}"

        curves = tuple(Curve(string(), ((0.0, 1.0), (1.0, 2.0))) for _ in range(2))
        run = dataclasses.replace(
            shown(),
            record=altered(record_of(), string, numbers=True),
            journals=altered(journals_of(), string, numbers=False),
            charts=[Chart(string(), curves)],
            hosts_file=string(),
            notes=[string()],
        )
        return structure(page(run)) + structure(comparison(run, run))

    assert made(lambda: data.draw(HOSTILE)) == made(lambda: "plain")


def test_one_node_has_failed_and_the_others_were_stopped_or_cancelled() -> None:
    record = record_of()
    attempt = record.attempts[0]
    attempt.nodes = [NodeRecord(rank, f"gpu{rank}", "/r", NodeState.FAILED, 1) for rank in range(3)]
    attempt.nodes[2].state = NodeState.SUCCEEDED
    attempt.nodes[2].exit_code = 0
    attempt.settle_nodes()
    made = page(dataclasses.replace(shown(), record=record))
    assert "<td>gpu0</td><td>stopped because node 1 failed</td><td></td>" in made
    assert "<td>gpu1</td><td>failed</td><td>1</td>" in made
    assert "<td>gpu2</td><td>succeeded</td><td>0</td>" in made
    attempt.state, attempt.first_failure = RunState.CANCELLED, None
    attempt.nodes[1].state = attempt.nodes[0].state = NodeState.FAILED
    attempt.settle_nodes()
    made = page(dataclasses.replace(shown(), record=record))
    assert "<td>0-1</td><td>gpu[0-1]</td><td>cancelled</td><td>1</td>" in made


def test_64_nodes_are_a_row_for_each_outcome_with_the_failed_one_first() -> None:
    record = record_of()
    [attempt, _] = record.attempts
    record.attempts = [attempt]
    attempt.nodes = [NodeRecord(n, f"gpu{n:02}", "/r", NodeState.FAILED, 1) for n in range(64)]
    attempt.settle_nodes()
    made = page(dataclasses.replace(shown(), record=record))
    hosts = made.split("<th>outcome</th>")[1].split("</table>")[0]
    assert re.findall("<tr><td>.*?</tr>", hosts) == [
        "<tr><td>1</td><td>1</td><td>gpu01</td><td>failed</td><td>1</td></tr>",
        "<tr><td>1</td><td>0,2-63</td><td>gpu[00,02-63]</td>"
        "<td>stopped because node 1 failed</td><td></td></tr>",
    ]


def words(page: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", " ", page))


def test_the_page_describes_the_run() -> None:
    made = words(page(shown()))
    for expected in (
        "20261121-050000-abcd",
        "Attempt 1:  rank 3 (gpu2",
        "ValueError: boom",
        "in-place  killed: rank 3 (gpu2plain) was killed by SIGKILL",
        "exception, exit code 1, node 1, 2026-11-21 05:00:30",
        "10.0.0.1:29500",
        "4 on 2 nodes",
        "attempt 2",
        "39.0 s",
        "Accuracy (top 1), eval  0.625",
        "GPU use (%), mean  91",
        "node 1 (gpu2): 91 at minute 1",
        "ddpctl launch hosts.yaml --image imageplain -- train.py 'two words' plain",
        "hosts: [gpu1]",
        "Evidence  kernel plain",
        "Evidence: failure-attempt-2-restart-1  gpu plain",
    ):
        assert expected in made


def test_the_page_shows_what_changed_between_attempts_and_where_ranks_hung() -> None:
    made = words(page(shown()))
    assert re.search(r"2\s+torch\s+2\.1\s+2\.2", made)
    assert re.search(r"2\s+code\s+111111111111\s+222222222222", made)
    assert re.search(r"2\s+environment variables\s+-\s+NCCL_DEBUG", made)
    assert not re.search(r"2\s+kernelplain\s+6", made)  # it is the same
    assert "rank 3 on gpu2 is not where the other ranks are" in made


def test_two_runs_are_compared_in_the_same_charts_and_what_differs_stands_out() -> None:
    other = dataclasses.replace(shown(), record=record_of())
    other.record.run_id = "20261122-050000-beef"
    other.record.image_digest = "sha256:2"
    made = comparison(shown(), other)
    assert "20261121-050000-abcd" in made and "20261122-050000-beef" in made
    assert "<li" in made and "train, A</label>" in made and "train, B</label>" in made
    differing = re.findall(r'<tr class="differs"><td>([^<]*)</td>', made)
    assert differing == ["image"]
    assert made.count("<h2>First failure of B</h2>") == 1


def test_a_host_speaks_only_for_its_own_nodes() -> None:
    record = record_of()
    event = b'1.0\t!\t{"versions": {"torch": "%s"}, "kind": "environment"}\n'
    lie = b"== 0/attempt-1\n" + event % b"9" + b"== 1/attempt-1\n" + event % b"2" + b"== x/y\n"
    journals = parse_journals(record, [("gpu2", lie), ("elsewhere", lie)])
    assert [(node.node_rank, node.host) for node in journals.nodes] == [(1, "gpu2")]
    assert journals.versions(1) == {"torch": "2"}


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
    assert "0.625 at step 100" in made and "s3cret" not in made
    done = report(env, tmp_path, "-o", "no/such/folder/out.html")
    assert done.returncode == 2 and "no/such/folder/out.html: cannot be written" in done.stderr


def test_the_page_is_written_through_a_link_and_to_a_pipe(tmp_path: Path) -> None:
    env = local_run(tmp_path)
    (tmp_path / "link.html").symlink_to("published.html")
    assert report(env, tmp_path, "-o", "link.html").returncode == 0
    assert "0.625 at step 100" in (tmp_path / "published.html").read_text()
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    assert report(env, tmp_path, "-o", "pipe").returncode == 0
    assert b"0.625 at step 100" in os.read(reader, 1 << 20)
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


def test_a_folder_that_is_gone_is_one_line(tmp_path: Path) -> None:
    env = local_run(tmp_path)
    (tmp_path / "gone").mkdir()
    line = f'rmdir "$PWD"; exec {sys.executable} -m launcher report -o out.html'
    argv, cwd = ["sh", "-c", line], tmp_path / "gone"
    done = subprocess.run(argv, env=env, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "out.html: cannot be written: no such file" in done.stderr


def test_an_unreachable_host_does_not_hide_the_others(tmp_path: Path) -> None:
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
    assert "error: 127.0.0.1: connection refused" in done.stderr
    made = (tmp_path / "out.html").read_text()
    assert (
        "0.625 at step 100" in made
        and "Curves may be missing: 127.0.0.1: connection refused" in made
    )
