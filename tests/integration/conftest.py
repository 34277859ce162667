from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import (
    APPTAINER,
    DOCKER,
    DOCKER_AND_PYTHON,
    PODMAN,
    PROCESSES,
    ROOTLESS_PODMAN,
    Cluster,
    Home,
    engine_problem,
    turn,
)
from forked_ddpctl import forked_ddpctl

Home.fork = staticmethod(forked_ddpctl)  # benchmarks, which measure, start a new Python

# Tests that share hosts with a long setup go to one process, early, and so do long tests.
GROUPS = (
    "hosts_with_podman",
    "hosts_without_containers",
    "hosts_with_apptainer",
    "hosts_with_python3",
    "test_compose.py",
    "test_cluster_restarts.py",
)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests that measure first: then they need not wait for a long test to end.

    The groups follow; all other tests go to whichever process is free.
    """
    for item in items:
        if group := _group(item):
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: (not item.get_closest_marker("alone"), _group(item) is None))


def _group(item: pytest.Item) -> str | None:
    return next((group for group in GROUPS if group in item.nodeid), None)


@pytest.fixture(autouse=True)
def taking_turns(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let processes run these tests side by side, but give tests that measure the machine to themselves."""
    with turn(alone=request.node.get_closest_marker("alone") is not None):
        yield


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three simulated hosts for the whole session, without Python, as users' hosts may be."""
    yield from _up(Cluster(tmp_path_factory.mktemp("cluster")))


@pytest.fixture(scope="module")
def hosts_with_python3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three more hosts with Python, so that they can relay a push."""
    yield from _up(Cluster(tmp_path_factory.mktemp("cluster"), [DOCKER_AND_PYTHON] * 3, "python3-"))


@pytest.fixture(scope="session")
def hosts_with_podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """node0 with Docker, node1 with Podman for root, node2 with rootless Podman."""
    kinds = [DOCKER, PODMAN, ROOTLESS_PODMAN]
    yield from _up(Cluster(tmp_path_factory.mktemp("cluster"), kinds, "podman-"))


@pytest.fixture(scope="session")
def hosts_without_containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three hosts with Python and torch, for a user who is not root."""
    yield from _up(Cluster(tmp_path_factory.mktemp("cluster"), [PROCESSES] * 3, "process-"))


@pytest.fixture(scope="session")
def hosts_with_apptainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three hosts with Apptainer and without Python, for a user who is not root."""
    yield from _up(Cluster(tmp_path_factory.mktemp("cluster"), [APPTAINER] * 3, "apptainer-"))


def _up(cluster: Cluster) -> Iterator[Cluster]:
    if problem := engine_problem():
        if os.environ.get("CI") == "true":
            pytest.fail(f"no simulated cluster: {problem}")
        pytest.skip(f"NO SIMULATED CLUSTER, its tests did not run: {problem}")
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The hosts, healthy and empty before the test: `parametrize("cluster", [...], indirect=True)`
    with "hosts_with_python3" selects those."""
    hosts = request.getfixturevalue(getattr(request, "param", "hosts"))
    hosts.reset()
    yield hosts


@pytest.fixture
def home(cluster: Cluster, tmp_path: Path) -> Home:
    """A launching machine for this test alone: home.ddpctl("launch", ...)."""
    return cluster.home_at(tmp_path / "state")
