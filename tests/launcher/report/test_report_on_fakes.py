"""`ddpctl report` on fake hosts: which of their files it reads."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes import FakeCluster, FakeDocker, FakeHost, FakeMachine
from reported_run import metrics_lines

from launcher.engines import docker_client
from launcher.hosts import Host
from launcher.report import report
from launcher.runs.record import parse_timestamp
from launcher.ssh import client

Make = Callable[..., FakeCluster]


def names_of_curves(cluster: FakeCluster) -> list[str]:
    code, _, err = cluster.ddpctl("report", "-o", "page.html")
    assert code == 0, err
    return re.findall(r"<i></i>([^<]*)</label>", Path("page.html").read_text())


def test_the_curves_of_hosts_that_share_a_home_are_drawn_once(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    cluster.share_home("gpu0", "gpu1")
    cluster.nodes_end(exit_code=0)
    assert cluster.launch()[0] == 0
    [output] = cluster.hosts["gpu0"].home.glob(".ddpctl/runs/*/output")
    (output / "metrics.jsonl").write_bytes(metrics_lines())
    assert names_of_curves(cluster) == ["train", "eval"]


def test_the_curves_of_the_first_of_two_accounts_on_a_host_and_the_nodes_of_both_are_drawn(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster("ann", "bob")

    def account(host: Host) -> FakeHost:
        return cluster.host(host.user or "local")

    monkeypatch.setattr(client, "SshMachine", lambda host, **_: FakeMachine(account(host)))
    monkeypatch.setattr(docker_client, "_connect", lambda each: FakeDocker(account(each.host)))
    file = Path(cluster.hosts_file)
    accounts = [{"host": "gpu0", "user": user} for user in cluster.hosts]
    file.write_text(json.dumps({**json.loads(file.read_text()), "hosts": accounts}))
    cluster.nodes_end(exit_code=0)
    assert cluster.launch()[0] == 0
    [output] = cluster.hosts["ann"].home.glob(".ddpctl/runs/*/output")
    (output / "metrics.jsonl").write_bytes(metrics_lines())
    for node in cluster.nodes:
        node.event("usage", cores=1.5, gpus=[])
    curves = names_of_curves(cluster)
    assert curves == ["train", "eval", "node 0 (gpu0)", "node 1 (gpu0)"]


def test_a_long_run_shows_samples_of_all_its_time_and_its_other_events_on_every_node(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster()
    cluster.share_home("gpu0", "gpu1")
    cluster.nodes_end(exit_code=0)
    assert cluster.launch()[0] == 0
    began = parse_timestamp(cluster.record["attempts"][0]["started"]) or 0.0
    for rank, node in enumerate(cluster.nodes):
        node.event("environment", versions={"torch": f"2.{rank}"})
        sample = json.dumps({"cores": 1.5, "gpus": [], "kind": "usage"})
        with node.journal.open("a") as journal:
            for number in range(600):
                journal.write(f"{began + 10.1 * number:.6f}\t!\t{sample}\n")
    monkeypatch.setattr(report, "LONGEST", 30_000)
    assert names_of_curves(cluster) == ["node 0 (gpu0)", "node 1 (gpu1)"]
    page = Path("page.html").read_text()
    minutes = [
        float(text) for text in re.findall(r"node 1 \(gpu1\): 1.5 at minute ([0-9.]*)", page)
    ]
    assert min(minutes) < 2 and max(minutes) > 98 and 40 < len(minutes) < 200
    assert "2.0 on gpu0, 2.1 on gpu1" in page


def test_a_run_of_weeks_takes_little_memory_of_its_hosts(tmp_path: Path) -> None:
    (folder := tmp_path / "nodes/0/attempt-1").mkdir(parents=True)
    sample = json.dumps({"cores": 1.5, "gpus": [[90, 40960, 81920]] * 16, "kind": "usage"})
    lines = (f"{10.1 * number:.6f}\t!\t{sample}\n" for number in range(50_000))
    (folder / "journal").write_text("".join(lines))
    script = f"ulimit -v 40000; {report.EVENTS}"  # KiB; the journal has about 19,000
    argv = ["sh", "-c", script, "sh", str(tmp_path), "100000", "0/attempt-1"]
    done = subprocess.run(argv, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"") and 50_000 < len(done.stdout) < 110_000


@pytest.mark.parametrize(
    ("codes", "state", "outcomes"),
    [
        ((0, 0), "SUCCEEDED", ["succeeded"]),
        ((0, 3), "FAILED", ["succeeded", "failed"]),
        ((0, None), "RUNNING", ["succeeded", "running"]),
        ((None, None), "RUNNING", ["running"]),
    ],
)
def test_a_run_that_nobody_followed_has_the_state_that_its_hosts_report(
    codes: tuple[int | None, ...], state: str, outcomes: list[str], fake_cluster: Make
) -> None:
    """As on another machine, or after the recorder has died."""
    cluster = fake_cluster()
    assert cluster.launch("--detach")[0] == 0
    for node, code in zip(cluster.nodes, codes, strict=True):
        node.event("environment", versions={})
        if code is not None:
            node.end(code)
    cluster.forget()
    code, _, err = cluster.ddpctl("report", cluster.hosts_file, "-o", "page.html")
    assert code == 0, err
    page = Path("page.html").read_text()
    assert re.findall("<title>.*: (.*)</title>", page) == [state]
    nodes = page[page.index('id="nodes"') : page.index('id="results"')]
    assert sorted(re.findall("<td>([a-z]{5,})</td>", nodes)) == sorted(outcomes)
    assert cluster.record["state"] == "PENDING"  # attach records the end, with its cause
