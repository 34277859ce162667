from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster, Home, engine_problem


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three simulated hosts for the whole session."""
    if problem := engine_problem():
        if os.environ.get("CI") == "true":
            pytest.fail(f"no simulated cluster: {problem}")
        pytest.skip(f"NO SIMULATED CLUSTER, its tests did not run: {problem}")
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()


@pytest.fixture
def cluster(hosts: Cluster) -> Iterator[Cluster]:
    """The hosts, whole and empty before and after the test."""
    hosts.reset()
    yield hosts


@pytest.fixture
def home(cluster: Cluster, tmp_path: Path) -> Home:
    """A launching machine of this test alone: home.ddpctl("launch", ...)."""
    return cluster.home_at(tmp_path / "state")
