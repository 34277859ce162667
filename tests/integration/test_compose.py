"""compose.yaml, the cluster in a box, as the README says to run it."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator

import pytest
from cluster import REPOSITORY, TREE, engine_problem

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def box() -> Iterator[list[str]]:
    """`docker compose` on a project of this test alone, with nothing left of it afterwards."""
    problem = engine_problem()
    if problem is None and subprocess.run([REPOSITORY / "scripts" / "compose-plugin"]).returncode:
        problem = "no docker compose"
    if problem:
        if os.environ.get("CI") == "true":
            pytest.fail(f"no cluster in a box: {problem}")
        pytest.skip(f"NO CLUSTER IN A BOX, its test did not run: {problem}")
    compose = ["docker", "compose", "--project-name", f"ddpctl-box-{TREE}-{os.getpid()}"]
    yield compose
    down = [*compose, "down", "--volumes", "--timeout", "0"]
    subprocess.run(down, cwd=REPOSITORY, check=True, capture_output=True)


def test_the_box_trains_and_exits_with_the_verdict(box: list[str]) -> None:
    env = {**os.environ, "DOCKER_BUILDKIT": "0"}  # BuildKit would ask a registry for a base
    build = ["docker", "build", "--network=host", "-q", "-t", "ddpctl-head"]
    build += ["-f", "compose/head/Dockerfile", "."]
    subprocess.run(build, cwd=REPOSITORY, env=env, check=True, capture_output=True)
    up = [*box, "up", "--no-build", "--no-color", "--exit-code-from", "head"]
    done = subprocess.run(up, cwd=REPOSITORY, capture_output=True, text=True, timeout=850)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert re.search(r"run box-\S+ succeeded", done.stdout + done.stderr)
    learned = re.search(r"(\d\d\.\d)% of 10000 test images", done.stdout)
    assert learned and float(learned[1]) > 70, done.stdout[-4000:]
