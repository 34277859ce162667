"""run.json, and which run is meant by what a user types."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from host_facts import facts

from launcher.errors import UsageError
from launcher.hosts import parse
from launcher.plan.build import Found, make_plan
from launcher.plan.options import LaunchOptions
from launcher.plan.plan import EngineTraits
from launcher.runs.record import RunFolder, find_run, new_attempt, new_record, timestamp
from launcher.state import state_home


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "ddpctl" / "runs"


def remember(run_id: str, *, age: float = 0.0) -> RunFolder:
    cluster = parse("hosts: [{host: a, gpus: 0}]\njob: {env: {SECRET: no}}", "h")
    plan = make_plan(
        cluster,
        EngineTraits("docker", in_container=True),
        LaunchOptions(),
        run_id=run_id,
        owner="o",
        found=Found((facts(),), ("i",)),
        env_names=["SECRET"],
    )
    folder = RunFolder(state_home() / "runs" / run_id)
    record = new_record(plan)
    record.attempts.append(new_attempt(plan))
    folder.save(record)
    folder.hosts_file.write_text("hosts: [a]\n")
    os.utime(folder.hosts_file, (1e9 - age, 1e9 - age))
    return folder


def test_the_record_has_what_the_contract_names_and_reads_back() -> None:
    folder = remember("r1")
    document = json.loads((folder.path / "run.json").read_text())
    wanted = {"run_id", "name", "hosts", "image_digest", "dataset_digest", "workdir_digest",
              "command", "attempts"}  # fmt: skip
    assert wanted <= set(document)
    attempt = document["attempts"][0]
    assert {"state", "created", "started", "ended", "nodes", "first_failure"} <= set(attempt)
    assert attempt["nodes"][0] | {"exit_code": None} == attempt["nodes"][0]
    assert folder.load() == folder.load()
    assert folder.load().attempt.nodes[0].host == "a"


def test_a_run_is_found_by_its_beginning_and_the_newest_without_a_name() -> None:
    remember("aa-1", age=100)
    remember("bb-2", age=10)
    assert find_run("aa").run_id == "aa-1"
    assert find_run(None).run_id == "bb-2"


def test_a_beginning_of_several_and_of_none_are_said() -> None:
    remember("aa-1")
    remember("aa-2")
    with pytest.raises(UsageError, match="matches several runs"):
        find_run("aa")
    with pytest.raises(UsageError, match="this machine has no run"):
        find_run("zz")
    assert find_run("aa-1").run_id == "aa-1"


def test_an_id_that_begins_another_is_that_run() -> None:
    remember("aa")
    remember("aa-2")
    assert find_run("aa").run_id == "aa"


def test_a_damaged_record_is_one_line() -> None:
    folder = remember("r1")
    (folder.path / "run.json").write_text('{"run_id": ')
    with pytest.raises(UsageError, match=r"run\.json: cannot be read.*ddpctl ps HOSTS"):
        folder.load()


def test_times_are_utc_with_milliseconds() -> None:
    assert timestamp(0.1234) == "1970-01-01T00:00:00.123Z"
