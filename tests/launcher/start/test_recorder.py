"""The recorder on fake hosts: it follows a detached run to its end and records it."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from fakes import FakeCluster

from launcher.start import recorder

Make = Callable[..., FakeCluster]


def test_a_detached_run_is_recorded_to_its_end(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster()
    code, out, err = cluster.launch("--detach")
    assert code == 0, err
    run_id = out.strip()
    assert cluster.recorders == [run_id]
    assert cluster.record["state"] == "RUNNING"
    for node in cluster.nodes:
        node.say("loss 0.1", node.node_rank)
        node.end(0)
    folder = cluster.state / "ddpctl" / "runs" / run_id
    monkeypatch.setattr(sys, "argv", ["recorder", str(folder)])
    monkeypatch.setattr(recorder, "report_ready", lambda: None)
    assert recorder.main() == 0
    assert cluster.record["state"] == "SUCCEEDED"
    assert b"loss 0.1" in (folder / "logs" / "node-1.log").read_bytes()
