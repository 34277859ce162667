"""What hosts report of nodes: a typed status, or one warning."""

from __future__ import annotations

import json
import logging
import platform
import time
from pathlib import Path

import pytest

from launcher.engines import status as status_module
from launcher.engines.process import Processes
from launcher.engines.status import inspected, read_status, seen_in_list
from launcher.hosts import Host
from launcher.run_id import is_run_id, new_run_id, time_of
from launcher.ssh.host_connection import HostConnection

LABELS = {
    "io.ddpctl.run-id": "20261122-101500-ab12",
    "io.ddpctl.attempt": "2",
    "io.ddpctl.node-rank": "1",
    "io.ddpctl.nnodes": "4",
    "io.ddpctl.owner": "ann@desk",
    "io.ddpctl.name": "big",
    "io.ddpctl.master-port": "29500",
}
ANSWER = {
    "State": {
        "Status": "exited",
        "ExitCode": 137,
        "OOMKilled": True,
        "StartedAt": "2026-11-22T10:15:00.123456789Z",
        "FinishedAt": "2026-11-22T10:16:00Z",
        "Error": "",
    },
    "Config": {"Image": "sha256:aa"},
}


def test_every_field_of_a_runs_container_is_read() -> None:
    status = read_status("gpu1", "c", LABELS, inspected(ANSWER))
    assert status is not None
    assert (status.run_id, status.attempt, status.node_rank) == ("20261122-101500-ab12", 2, 1)
    assert (status.nnodes, status.owner, status.master_port) == (4, "ann@desk", "29500")
    assert (status.state, status.exit_code, status.oom_killed) == ("exited", 137, True)
    assert status.started == pytest.approx(1795342500.123, abs=0.001)
    assert status.ended == 1795342560.0


@pytest.mark.parametrize(
    "odd",
    [
        {"attempt": "abc"},
        {"attempt": "-1"},
        {"attempt": "9" * 5000},
        {"attempt": "١"},
        {"node-rank": ""},
        {"node-rank": "4"},
        {"nnodes": "1e3"},
        {"nnodes": None},
        {"run-id": "/tmp/x"},
        {"run-id": ".."},
        {"run-id": "a" * 100},
        {"run-id": "r1\n"},
        {"run-id": "r\x1b[31m"},
        {"gpus": "a b"},
        {"gpus": ",,"},
        {"since": "-1"},
        {"since": "1e9"},
        {"master-port": "-1"},
        {"master-port": "1" * 50},
    ],
)
def test_odd_labels_are_skipped_with_one_warning(
    odd: dict[str, object],
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(status_module, "_skipped", {})
    labels = {**LABELS, **{f"io.ddpctl.{key}": value for key, value in odd.items()}}
    handle = f"c\x1b]0;x\x07-{request.node.name}"
    with caplog.at_level(logging.WARNING, "ddpctl"):
        for _ in range(2):
            assert read_status("gpu1", handle, labels, inspected(ANSWER)) is None
    [record] = caplog.records
    message = record.getMessage()
    assert message.startswith("gpu1: skipped c-")
    assert message.isprintable() and len(message) < 1000


def test_thousands_of_odd_nodes_are_few_warnings(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_module, "_skipped", {})
    with caplog.at_level(logging.WARNING, "ddpctl"):
        for number in range(1000):
            for host in ("evil", "good")[: 1 + (number == 999)]:
                assert read_status(host, f"many-{number}", {}, inspected(ANSWER)) is None
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 12 and texts[-1].startswith("good: skipped many-999")
    assert texts[-2].startswith("evil: skipped more nodes")


def test_texts_of_a_host_have_no_control_characters() -> None:
    labels = {**LABELS, "io.ddpctl.owner": "a\x1b[2Jb\n", "io.ddpctl.name": "n" * 9999}
    answer = {**ANSWER, "State": {**ANSWER["State"], "Error": "x\x9b31m\r"}}  # type: ignore[dict-item]
    status = read_status("gpu1", "c", labels, inspected(answer))
    assert status is not None
    assert (status.owner, status.error, len(status.name)) == ("ab", "x", 300)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"State": None, "Config": None},
        {
            "State": {
                "Status": 7,
                "Error": [],
                "ExitCode": "0",
                "StartedAt": "soon",
                "FinishedAt": 4,
            }
        },
        {"State": {"Status": "exited", "ExitCode": None, "FinishedAt": "2026-99-99T00:00:00Z"}},
    ],
)
def test_malformed_answers_are_parsed_as_far_as_possible(answer: dict[str, object]) -> None:
    status = read_status("gpu1", "c", LABELS, inspected(answer))
    assert status is not None
    assert (status.exit_code, status.started, status.ended) == (None, None, None)
    assert status.alive == (status.state == "unknown")  # what may run is never taken for gone


def test_podmans_exit_code_after_a_reboot_is_not_believed() -> None:
    state = {"Status": "exited", "ExitCode": 0, "FinishedAt": "0001-01-01T00:00:00Z"}
    seen = inspected({"State": state})
    assert (seen.state, seen.exit_code, seen.ended) == ("exited", None, None)


def test_states_of_podman() -> None:
    def seen(state: str) -> tuple[str, int | None]:
        found = inspected({"State": {**ANSWER["State"], "Status": state}})  # type: ignore[dict-item]
        return found.state, found.exit_code

    assert seen_in_list({"State": "stopped"}).state == "exited"
    assert seen("stopped") == ("exited", 137)  # until Podman has cleaned up
    assert seen("initialized") == seen("stopping") == seen("what else") == ("unknown", None)


def test_odd_files_of_the_process_engine_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    runs = tmp_path / ".ddpctl" / "runs"

    def control(
        run_id: str, attempt: str, labels: str, pid: str = "", host: str = platform.node()
    ) -> None:
        folder = runs / run_id / "nodes" / "1" / attempt
        folder.mkdir(parents=True)
        (folder / "labels.json").write_text(labels)
        (folder / "host").write_text(host)
        if pid:
            (folder / "pid").write_text(pid)

    whole = {key.removeprefix("io.ddpctl."): value for key, value in LABELS.items()}
    text = json.dumps(whole)
    control("20261122-101500-ab12", "attempt-2", text, "-1 5")  # a negative pid is a group
    control("20261122-101500-ab12", "attempt-x", text)
    control("r-other-host", "attempt-1", text, host="shares the home")
    control("UPPER CASE", "attempt-1", text)
    control("r-list", "attempt-1", "[]")
    control("r-torn", "attempt-1", '{"run-id"')
    control("r-word", "attempt-1", json.dumps({**whole, "attempt": "abc"}))
    listed = Processes(HostConnection(Host("local"))).nodes()
    [status] = [each for each in listed if not each.is_ticket]  # of a test beside this one
    assert (status.run_id, status.state) == ("20261122-101500-ab12", "created")


def test_run_ids() -> None:
    assert is_run_id(new_run_id("")) and is_run_id(new_run_id("a" * 41))
    assert not any(is_run_id(text) for text in ("", "a/b", "../x", "-x", "a b", None, 7))


def test_run_ids_are_ordered_by_time_whatever_the_time_zone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Several machines may use the same hosts, and a clock may be set back an hour."""
    times = []
    for zone in ("EAST-12", "WEST+12"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        times.append(time_of(new_run_id("")))
    monkeypatch.undo()
    time.tzset()
    assert times[0][:15] <= times[1][:15]
