"""Engines are known by name in one place, and those without containers need not know about images."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from launcher.engines import choose
from launcher.engines.base import Engine
from launcher.engines.choose import claims_on, engine_of, engines_on, installed_engines, nodes_on
from launcher.engines.docker import Docker
from launcher.engines.process import Processes
from launcher.engines.status import NodeStatus
from launcher.errors import UsageError
from launcher.hosts import Host
from launcher.hosts.schema import SCHEMA
from launcher.ssh.host_connection import HostConnection

LOCAL = HostConnection(Host("local"))
REMOTE = HostConnection(Host("gpu1"))


def names(engines: Sequence[Engine]) -> list[str]:
    return [engine.traits.name for engine in engines]


def test_a_hosts_file_may_name_each_engine() -> None:
    assert SCHEMA["properties"]["job"]["properties"]["engine"]["enum"] == [*choose.ENGINES]


@pytest.mark.parametrize(
    ("connection", "engine", "expected"),
    [
        (LOCAL, "docker", ["docker", "process"]),
        (REMOTE, "docker", ["docker"]),
        (LOCAL, "process", ["process"]),
        (LOCAL, "apptainer", ["apptainer"]),  # it sees the nodes of the process engine too
    ],
)
def test_only_this_machine_may_have_runs_with_and_without_containers(
    connection: HostConnection, engine: str, expected: list[str]
) -> None:
    assert names(engines_on(connection, engine)) == expected


@pytest.mark.parametrize("installed", [True, False])
def test_cleaning_asks_the_engine_of_the_job_and_those_that_the_host_has(
    monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    monkeypatch.setattr(Docker, "is_installed", lambda _: installed)
    others = ["docker"] if installed else []
    assert names(installed_engines(REMOTE, "process")) == [*others, "process"]
    assert names(installed_engines(REMOTE, "docker")) == ["docker", "process"]


def test_claims_on_this_machine_include_those_of_runs_without_containers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Docker, "claims", lambda _: [NodeStatus(run_id="in-docker")])
    monkeypatch.setattr(Processes, "claims", lambda _: [NodeStatus(run_id="processes")])
    assert [claim.run_id for claim in claims_on(LOCAL, "docker")] == ["in-docker", "processes"]
    assert [claim.run_id for claim in claims_on(REMOTE, "docker")] == ["in-docker"]


def test_a_host_that_is_asked_about_one_run_is_not_believed_about_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed = [NodeStatus(run_id="asked"), NodeStatus(run_id="other")]
    monkeypatch.setattr(Docker, "nodes", lambda *_: listed)
    assert nodes_on(REMOTE, "docker", "asked") == listed[:1]
    assert nodes_on(REMOTE, "docker") == listed


def test_an_engine_without_containers_inherits_plain_answers_about_images() -> None:
    engine = engine_of(REMOTE, "process")
    assert engine.engine_info("any:1") is None
    assert (engine.python_in_image("any:1"), engine.mounted()) == ((), frozenset())


def test_an_unknown_engine_is_named() -> None:
    with pytest.raises(UsageError, match="no engine is called podman; use one of docker, process"):
        engine_of(LOCAL, "podman")
