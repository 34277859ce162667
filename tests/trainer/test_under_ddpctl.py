"""The trainer under the launcher, as local processes: what the launcher says about its failures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from local_machine import Machine
from test_faults import tree_flags, tree_with_a_corrupt_file
from trainer_ranks import TINY

pytestmark = pytest.mark.real


def test_the_launcher_names_the_rank_and_the_file_that_failed(tmp_path: Path) -> None:
    tree, bad = tree_with_a_corrupt_file(tmp_path, rank=1, world_size=2)
    machine = Machine(tmp_path)
    path = tmp_path / "hosts.yaml"
    hosts = json.loads(path.read_text())
    flags = [*TINY, *tree_flags(tree), "--timeout", "120"]
    hosts["job"] |= {
        "nproc_per_node": 1,
        "command": ["-m", "trainer", *flags],
        "env": {"PYTHONPATH": machine.env["PYTHONPATH"]},
    }
    path.write_text(json.dumps(hosts))
    done = machine.ddpctl("launch", "hosts.yaml", code=1)
    failure = machine.record()["attempts"][0]["first_failure"]
    assert (failure["rank"], failure["exit_code"]) == (1, 3)
    verdict = next(line for line in done.stderr.splitlines() if " failed: " in line)
    assert "failed: rank 1 " in verdict and f"{bad}: not a readable image" in verdict
