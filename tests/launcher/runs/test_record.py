"""run.json, and which run is meant by what a user types."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from _pytest.outcomes import Failed
from host_facts import facts

from launcher.errors import UsageError
from launcher.hosts import parse
from launcher.look.ps import Selection, clusters_of
from launcher.outcomes import RunState
from launcher.own_folders import state_home
from launcher.plan.build import PlanInputs, build_plan
from launcher.plan.launch_options import LaunchOptions
from launcher.plan.plan import EngineTraits
from launcher.runs.find import find_recorded
from launcher.runs.record import for_hosts, new_record, timestamp
from launcher.runs.run_folder import RunFolder, UnreadableRecord, run_folder, run_folders
from launcher.stop.pending_stops import finish_pending_stops
from launcher.terminal.console import Console


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "ddpctl" / "runs"


def remember(run_id: str, *, age: float = 0.0) -> RunFolder:
    cluster = parse("hosts: [{host: a, gpus: 0}]\njob: {env: {SECRET: no}}", "h")
    plan = build_plan(
        cluster,
        EngineTraits("docker", in_container=True),
        LaunchOptions(),
        run_id=run_id,
        owner="o",
        inputs=PlanInputs((facts(),), ("i",)),
        env_names=["SECRET"],
    )
    folder = RunFolder(state_home() / "runs" / run_id)
    record = new_record(plan)
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


def test_the_copy_of_the_record_on_a_host_stays_small_with_many_nodes_and_attempts() -> None:
    record = remember("r1").load()
    record.attempt.nodes = record.attempt.nodes * 64
    record.attempts = record.attempts * 20
    kept = for_hosts(record)
    assert len(kept["attempts"]) == 20
    assert len(json.dumps(kept)) < 65536  # what `ps --all` reads of it
    assert len(record.attempt.nodes) == 64


def test_a_run_is_found_by_a_prefix_of_its_id_and_without_one_the_newest_is() -> None:
    remember("aa-1", age=100)
    remember("bb-2", age=10)
    assert find_recorded("aa").run_id == "aa-1"
    assert find_recorded(None).run_id == "bb-2"


def test_an_ambiguous_or_unknown_prefix_of_a_run_id_is_an_error() -> None:
    remember("aa-1")
    remember("aa-2")
    with pytest.raises(UsageError, match="matches several runs"):
        find_recorded("aa")
    with pytest.raises(UsageError, match=r"no record of run .* add `--hosts HOSTS`"):
        find_recorded("zz")
    assert find_recorded("aa-1").run_id == "aa-1"


def test_an_id_that_begins_another_is_that_run() -> None:
    remember("aa")
    remember("aa-2")
    assert find_recorded("aa").run_id == "aa"


DAMAGED = {
    "torn": '{"run_id": ',
    "list": "[]",
    "deep": "[" * 100_000,
    "no attempts": {"attempts": []},
    "attempts of numbers": {"attempts": [1]},
    "pending_stop of null": {"pending_stop": None},
    "a number for a string": {"name": 7},
    "newer": {"version": 99},
    "another run's": {"run_id": "../../elsewhere"},
}


def damage(folder: RunFolder, how: str | dict[str, Any]) -> None:
    if isinstance(how, dict):
        how = json.dumps({**json.loads(folder.record_file.read_text()), **how})
    folder.record_file.write_text(how)


@pytest.mark.parametrize("how", DAMAGED)
def test_a_damaged_record_is_one_warning(how: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = remember("r1")
    damage(folder, DAMAGED[how])
    with pytest.raises(UnreadableRecord, match=r"run\.json: cannot be read.*ddpctl ps HOSTS"):
        folder.load()
    assert folder.load_if_readable(Console()) is None
    assert capsys.readouterr().err.count("\n") == 1


def test_of_thousands_of_ended_runs_ps_reads_only_the_beginning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        folder = remember(f"r{number}")
        record = folder.load()
        record.attempt.state = RunState.SUCCEEDED
        folder.save(record)
    folder = remember("live")
    monkeypatch.setattr(RunFolder, "load", lambda self: pytest.fail(f"{self.run_id} was read"))
    with pytest.raises(Failed, match="live was read"):
        clusters_of(Selection(None, False, False), Console())
    shutil.rmtree(folder.path)
    assert clusters_of(Selection(None, False, False), Console()) == []
    assert len(clusters_of(Selection(None, True, False), Console())) == 1
    finish_pending_stops([], Console())
    assert find_recorded("r1").run_id == "r1"


def test_a_run_with_an_unconfirmed_stop_is_not_settled() -> None:
    folder = remember("r1")
    record = folder.load()
    assert not folder.is_settled()
    assert not RunFolder(folder.path.with_name("without-a-record")).is_settled()
    record.attempt.state = RunState.CANCELLED
    record.pending_stop = ["a"]
    folder.save(record)
    assert not folder.is_settled()
    record.pending_stop = []
    folder.save(record)
    assert folder.is_settled()


def test_unknown_fields_are_ignored() -> None:
    folder = remember("r1")
    before = folder.load()
    damage(folder, {"invented": {"later": 1}})
    assert folder.load() == before


def test_folders_that_are_no_run_are_ignored(state: Path) -> None:
    remember("r1")
    for name in ("Bad Name", "-rf", "empty"):
        (state / name).mkdir()
    (state / "Bad Name" / "run.json").write_text("{}")
    assert [folder.run_id for folder in run_folders()] == ["r1"]


def test_a_sanity_run_is_never_the_newest() -> None:
    remember("r1", age=10)
    remember("sanity-20261121-100000-abcd")
    assert find_recorded(None).run_id == "r1"
    assert find_recorded("sanity").run_id == "sanity-20261121-100000-abcd"


def test_a_record_that_cannot_be_written_is_one_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = remember("r1")
    record = folder.load()
    shutil.rmtree(folder.path)
    folder.path.write_text("in the way")
    folder.try_save(record, Console())
    folder.try_save(record, Console())
    assert capsys.readouterr().err.count("not recorded: ") == 1


def test_times_are_utc_with_milliseconds() -> None:
    assert timestamp(0.1234) == "1970-01-01T00:00:00.123Z"


def test_a_record_whose_nodes_are_not_in_the_order_of_their_ranks_is_damaged() -> None:
    folder = remember("r1")
    document = json.loads(folder.record_file.read_text())
    document["attempts"][0]["nodes"][0]["node_rank"] = 7
    folder.record_file.write_text(json.dumps(document))
    with pytest.raises(UnreadableRecord, match="not in rank order"):
        folder.load()


def test_hosts_that_the_run_no_longer_uses_are_kept_with_their_settings() -> None:
    folder = run_folder("20261120-1")

    def ports_after(hosts: str) -> dict[str, int | None]:
        folder.keep_cluster(parse(f"hosts: [{hosts}]\njob: {{image: x}}", "h"))
        return {name: host.port for name, host in folder.all_hosts().items()}

    assert ports_after("{host: a, port: 1}, {host: b, port: 2}") == {"a": 1, "b": 2}
    assert ports_after("c, {host: b, port: 3}") == {"a": 1, "b": 3, "c": None}
    assert ports_after("c") == {"a": 1, "b": 3, "c": None}
    assert ports_after("{host: a, port: 4}") == {"a": 4, "b": 3, "c": None}
    folder.former_hosts_file.write_text("hosts: 1")
    folder.keep_cluster(parse("hosts: [d]\njob: {image: x}", "h"))
    assert [host.name for host in folder.kept_cluster().hosts] == ["d"]


def test_former_hosts_may_have_had_the_same_address_or_name_in_another_case() -> None:
    folder = run_folder("20261120-1")
    for name in ("a", "b", "B", "c"):  # b replaces a
        host = f"{{host: {name}, internal_ip: 10.0.0.3}}"
        folder.keep_cluster(parse(f"hosts: [{host}]\njob: {{image: x}}", "h"))
    assert [*folder.all_hosts()] == ["a", "b", "B", "c"]
