"""compose.yaml, the cluster in a box, run as the README describes.

Two of its hosts already have the trainer's image, as after a restart of the box. The third receives
it by push.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from cluster import (
    DOCKER,
    LABEL,
    REPOSITORY,
    TRAINER_IMAGE,
    TREE,
    Cluster,
    copy_engine,
    docker,
    loaded_engine,
    locked,
    remove_project,
)

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

PROJECT = f"ddpctl-box-{TREE}-{os.getpid()}"
WITH_IMAGE = ("node0", "node1")


@pytest.fixture
def box(hosts: Cluster, tmp_path: Path) -> Iterator[list[str]]:
    """`docker compose` on a project of this test alone, which leaves nothing behind."""
    if subprocess.run([REPOSITORY / "scripts" / "compose-plugin"]).returncode:
        problem = "NO CLUSTER IN A BOX, its test did not run: no docker compose"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(problem)
    compose = ["docker", "compose", "--project-name", PROJECT, "--file", "compose.yaml"]
    compose += ["--file", str(changed(tmp_path))]
    try:
        make_volumes(hosts)
        yield compose
    finally:
        down = [*compose, "down", "--volumes", "--timeout", "0"]
        subprocess.run(down, cwd=REPOSITORY, check=True, capture_output=True)
        remove_project(PROJECT)


def changed(folder: Path) -> Path:
    """Return what replaces parts of compose.yaml in this test: volumes for engines that have the image."""
    services = {node: {"volumes": [f"{node}:/var/lib/docker"]} for node in WITH_IMAGE}
    volumes = {node: {"external": True, "name": f"{PROJECT}-{node}"} for node in WITH_IMAGE}
    file = folder / "compose.yaml"
    file.write_text(yaml.safe_dump({"services": services, "volumes": volumes}))
    return file


def make_volumes(hosts: Cluster) -> None:
    labels = ["--label", f"{LABEL}={TREE}", "--label", f"{LABEL}.project={PROJECT}"]
    names = [f"{PROJECT}-{node}" for node in WITH_IMAGE]
    volumes = [docker("volume", "create", *labels, name) for name in names]
    with locked("engine"):
        copy_engine(loaded_engine(hosts.keys, DOCKER, TRAINER_IMAGE), DOCKER, volumes)


def test_the_box_trains_and_exits_with_the_verdict(box: list[str]) -> None:
    env = {**os.environ, "DOCKER_BUILDKIT": "0"}  # BuildKit would ask a registry for a base
    build = ["docker", "build", "--network=host", "-q", "-t", "ddpctl-head"]
    build += ["-f", "compose/head/Dockerfile", "."]
    subprocess.run(build, cwd=REPOSITORY, env=env, check=True, capture_output=True)
    up = [*box, "up", "--no-build", "--no-color", "--exit-code-from", "head"]
    done = subprocess.run(up, cwd=REPOSITORY, capture_output=True, text=True, timeout=850)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    said = done.stdout + done.stderr
    assert re.search(r"run box-\S+ succeeded", said)
    assert set(re.findall(r"(node\d): image: .* in ", said)) == {"node2"}
    learned = re.search(r"(\d\d\.\d)% of 10000 test images", done.stdout)
    assert learned and float(learned[1]) > 70, done.stdout[-4000:]
