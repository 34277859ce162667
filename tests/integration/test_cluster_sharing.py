"""Runs that want the same GPUs, on real engines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import Cluster, Home

pytestmark = pytest.mark.cluster
RACE = Path(__file__).with_name("race.py")
PAIRS = 8


def test_of_pairs_of_launches_one_starts_and_the_other_leaves_nothing(
    cluster: Cluster, home: Home, tmp_path: Path
) -> None:
    hosts = cluster.hosts_yaml(
        tmp_path / "hosts.yaml", [{"host": node, "gpus": "all"} for node in cluster.nodes]
    )
    done = subprocess.run(
        [sys.executable, RACE, hosts, str(PAIRS)],
        env=home.environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pairs = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(pairs) == PAIRS
    for pair in pairs:
        [winner] = [run_id for run_id in pair["started"] if run_id]
        assert {run_id for _, _, run_id in pair["there"]} == {winner}
    assert all(cluster.containers(node) == [] for node in cluster.nodes)
