"""`ddpctl report` on fake hosts: which of their files it reads."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes import FakeCluster
from reported_run import metrics_lines

from launcher.report import report

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


def test_samples_of_a_long_run_leave_room_for_its_other_events_on_every_node(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster()
    cluster.share_home("gpu0", "gpu1")
    cluster.nodes_end(exit_code=0)
    assert cluster.launch()[0] == 0
    for rank, node in enumerate(cluster.nodes):
        began = {"versions": {"torch": f"2.{rank}"}, "kind": "environment"}
        sample = {"cores": 1.5, "gpus": [], "minute": [], "ranks": [], "kind": "usage"}
        for document in [began, *[sample] * 200]:
            node.say(json.dumps(document), "!")
    monkeypatch.setattr(report, "LONGEST", 12_000)
    assert names_of_curves(cluster) == ["node 0 (gpu0)", "node 1 (gpu1)"]
    page = Path("page.html").read_text()
    assert "2.0 on gpu0, 2.1 on gpu1" in page


def test_hosts_that_only_an_earlier_attempt_used_are_asked_too(fake_cluster: Make) -> None:
    cluster = fake_cluster("gpu0", "gpu1", "gpu2", master_port="auto")
    cluster.nodes_end(exit_code=1)
    assert cluster.launch()[0] == 1
    [output] = cluster.hosts["gpu0"].home.glob(".ddpctl/runs/*/output")
    (output / "metrics.jsonl").write_bytes(metrics_lines())
    for excluded in ("gpu0", "gpu1"):
        code, _, err = cluster.ddpctl("resume", "--exclude", excluded)
        assert code == 1, err
    assert names_of_curves(cluster) == ["train", "eval"]
    cluster.hosts["gpu0"].reachable = False
    code, _, err = cluster.ddpctl("report", "-o", "page.html")
    assert (code, "gpu0: no answer within 10s" in err) == (4, True), err
    assert "Curves may be missing: gpu0: no answer" in Path("page.html").read_text()
