"""A run of another machine: its hosts contribute only plain values, never anything to act on."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_machine import Machine

from launcher.errors import UsageError
from launcher.hosts import Host, parse
from launcher.runs.adopt import by_rank, record_of
from launcher.runs.reported import ReportedRun, parse_reports, reported_nodes
from launcher.ssh.host_connection import HostConnection

EVIL = {
    "hosts_file": "hosts: [evil.example]\njob: {command: [evil.py], engine: process}\n",
    "hosts": ["evil.example"],
    "engine": "evil",
    "command": ["evil.py"],
    "run_id": "../../evil",
    "name": "evil\x1b[2J",
    "owner": "evil",
    "pending_stop": ["evil"],
    "attempts": [
        {"attempt": 1, "state": "evil", "created": "evil", "nodes": [{"run_dir": "/evil"}]}
    ],
}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    for run in (made.folder / "home" / ".ddpctl" / "runs").iterdir():
        made.ddpctl("kill", run.name, "--hosts", "hosts.yaml")


def test_a_host_cannot_choose_what_another_machine_does(machine: Machine) -> None:
    here = machine.env["XDG_STATE_HOME"]
    machine.env["XDG_STATE_HOME"] = str(machine.folder / "another machine")
    run_id = machine.ddpctl("launch", "hosts.yaml", "-d", "--env", "SLEEP=100").stdout.strip()
    machine.env["XDG_STATE_HOME"] = here
    machine.wait_for_ranks()
    kept = list((machine.folder / "home").glob(".ddpctl/runs/*/nodes/*/attempt-1/run.json"))
    assert len(kept) == 2
    for path in kept:
        document = json.loads(path.read_text())
        assert "hosts_file" not in document
        path.write_text(json.dumps({**document, **EVIL}))

    said = machine.ddpctl("logs", run_id, "--hosts", "hosts.yaml", "--rank", "3")
    assert said.stdout == "[local:3] up 3 ['two words', '$(x)'] attempt 1\n"
    assert "local reports attempt" in said.stderr
    written = [p for p in (machine.folder / "state").rglob("*") if p.is_file()]
    assert written and not [path for path in written if b"evil" in path.read_bytes()]
    assert machine.record()["command"] == ["train.py", "two words", "$(x)"]
    assert machine.record()["attempts"][0]["state"] == "UNKNOWN"

    machine.ddpctl("kill", run_id)
    refused = machine.ddpctl("resume", run_id, code=2)
    assert f"ddpctl resume {run_id} --hosts HOSTS" in refused.stderr
    resumed = machine.ddpctl("resume", run_id, "--hosts", "hosts.yaml")
    assert "resumes with the command of hosts.yaml: train.py 'two words' '$(x)'" in resumed.stderr
    assert machine.record()["attempts"][1]["state"] == "SUCCEEDED"


@pytest.mark.parametrize(
    "head", [b"", b"../../x 0 1 0 5", b"r 0 99999999 0 5", b"r 0 1 2 5", b"r 0 0 1 5"]
)
def test_text_that_is_no_report_is_skipped(head: bytes) -> None:
    assert list(parse_reports(head + b"\n{}\n\n", "h")) == []


@pytest.mark.parametrize("document", [b"", b"[]", b"{", b"[" * 100_000])
def test_a_document_that_is_no_record_is_ignored(document: bytes) -> None:
    [(status, run)] = parse_reports(b"r 0 1 0 5\n" + document + b"\n\n", "h")
    assert (run, status.state) == (ReportedRun(), "unknown")


def test_reported_values_of_another_form_are_left_out() -> None:
    text = json.dumps(
        {
            "image_digest": "sha256:\x1b[2J",
            "dataset_digest": "ab12",
            "attempts": [{"attempt": 2, "state": "evil", "created": "evil", "started": None}],
        }
    )
    [(status, run)] = parse_reports(b"r 1 2 0 5\n" + text.encode() + b"\n\n", "h")
    assert (status.node_rank, status.attempt) == (1, 2)
    record = record_of("r", parse("hosts: [a]", "h"), run, 2)
    assert (record.image_digest, record.dataset_digest) == (None, "ab12")
    assert [(a.attempt, a.state, a.created) for a in record.attempts] == [
        (1, "UNKNOWN", ""),
        (2, "UNKNOWN", ""),
    ]


def test_nodes_take_the_ranks_that_their_hosts_report_and_silent_hosts_the_others() -> None:
    connections = [HostConnection(host) for host in parse("hosts: [a, b, c]", "h").hosts]
    a, b, c = connections
    assert by_rank(connections, {a: [2], c: [0]}, [b], 3, "h") == [c, b, a]
    assert by_rank(connections, {a: [0], c: [1]}, [b], 3, "h") == [a, c, b]
    assert by_rank(connections, {a: [0], c: [1]}, [b], 2, "h") == [a, c]
    with pytest.raises(UsageError, match="node 1 of the run is on none of these hosts"):
        by_rank(connections, {a: [2], c: [0]}, [], 3, "h")
    with pytest.raises(UsageError, match="nodes 2-8 of the run are on none of these hosts"):
        by_rank(connections, {a: [0], c: [1]}, [], 9, "h")
    with pytest.raises(UsageError, match="both a and c report node 0"):
        by_rank(connections, {a: [0], c: [0]}, [b], 3, "h")


@pytest.mark.parametrize("name", ["host", "run.json", "journal"])
def test_a_fifo_in_the_folder_of_a_run_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    attempt = tmp_path / ".ddpctl" / "runs" / "20261121-101500-abcd" / "nodes" / "0" / "attempt-1"
    attempt.mkdir(parents=True)
    for file, text in {"host": os.uname().nodename, "run.json": "{}", "journal": ""}.items():
        (attempt / file).write_text(text)
    (attempt / name).unlink()
    os.mkfifo(attempt / name)
    began = time.monotonic()
    with contextlib.closing(HostConnection(Host("local"))) as connection:
        reports, failures = reported_nodes([connection])
    assert not failures and time.monotonic() - began < 30
    assert len(reports[connection]) == (0 if name == "host" else 1)
