"""`ddpctl clean` where two accounts of one host are in the hosts file."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes import FakeCluster, FakeMachine

from launcher.engines import status
from launcher.runs.attempt_lock import is_cancelled
from launcher.runs.run_folder import run_folder
from launcher.ssh import client

Make = Callable[..., FakeCluster]


def test_the_run_of_one_account_is_spared_when_another_account_is_cleaned(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster("ann", "bob")  # their homes
    monkeypatch.setattr(
        client, "SshMachine", lambda host, connect_timeout: FakeMachine(cluster.hosts[host.user])
    )
    twice = [{"host": "gpu1", "user": user} for user in ("bob", "ann")]
    Path(cluster.hosts_file).write_text(json.dumps({"defaults": {"gpus": 0}, "hosts": twice}))
    ann, bob = (host.home / ".ddpctl" for host in cluster)
    (ann / "datasets").mkdir(parents=True)
    attempt = bob / "runs" / "20261122-101500-ab12" / "nodes" / "0" / "attempt-1"
    attempt.mkdir(parents=True)
    (attempt / "host").write_text("gpu9")
    for name in ("journal", "ballast"):
        (attempt / name).touch()
    code, out, err = cluster.ddpctl("clean", cluster.hosts_file, "-y", "--json")
    assert code == 6, err
    # bob's files are still there
    assert {each["host"]: each["clean"] for each in json.loads(out)["hosts"]} == {
        "gpu1": False,
        "gpu1 (2)": True,
    }
    assert not ann.exists()
    assert attempt.exists()


def test_the_question_has_the_totals(fake_cluster: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = fake_cluster()
    for host in cluster:
        (host.home / ".ddpctl" / "datasets").mkdir(parents=True)
        (host.home / ".ddpctl" / "datasets" / "file").write_bytes(bytes(10**6))
    questions: list[str] = []
    monkeypatch.setattr("launcher.terminal.ask.can_ask", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda text, **_: questions.append(text))
    assert cluster.ddpctl("clean", cluster.hosts_file)[0] == 0
    assert len(questions) == 1 and questions[0].startswith(
        "Remove all of this (2 items, 2.0 MB, on 2"
    )


def test_a_clean_is_not_confirmed_while_a_host_that_its_run_lost_has_not_confirmed_its_stop(
    fake_cluster: Make,
) -> None:
    cluster = fake_cluster()
    assert cluster.launch("--detach")[0] == 0
    [file] = cluster.state.glob("ddpctl/runs/*/run.json")
    file.write_text(json.dumps({**cluster.record, "pending_stop": ["gpu9"]}))
    code, _, err = cluster.ddpctl("clean", cluster.hosts_file, "--kill", "-y")
    assert code == 6 and "gpu9: stop not confirmed" in err, err
    assert cluster.nodes == [] and cluster.record["pending_stop"] == ["gpu9"]


def test_a_clean_that_kills_a_run_also_cancels_its_restart_here(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    run_id = cluster.launch("--detach")[1].strip()
    assert not is_cancelled(run_folder(run_id), 1)
    assert cluster.ddpctl("clean", cluster.hosts_file, "--kill", "-y")[0] == 0
    assert is_cancelled(run_folder(run_id), 1)


def test_a_launch_that_is_about_to_start_its_nodes_keeps_its_hosts(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    assert cluster.launch("--detach")[0] == 0
    for node in cluster.nodes:
        node.state, node.created = "created", time.time() - 5
    code, _, err = cluster.ddpctl("clean", cluster.hosts_file, "-y")
    assert code == 0 and f"gpu1: not cleaned: {cluster.record['run_id']}" in err
    assert len(cluster.nodes) == 2 and all((host.home / ".ddpctl").exists() for host in cluster)
    for node in cluster.nodes:
        node.created = time.time() - 61  # its launch is gone
    assert cluster.ddpctl("clean", cluster.hosts_file, "-y")[0] == 0
    assert cluster.nodes == []


def test_a_run_that_waits_in_line_keeps_its_hosts(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster(gpus=2, master_port="auto")
    first, second = (cluster.launch("--wait", "--detach")[1].strip() for _ in range(2))
    assert cluster.ddpctl("kill", first)[0] == 0
    code, _, err = cluster.ddpctl("clean", cluster.hosts_file, "-y")
    assert code == 0 and f"gpu1: not cleaned: {second} is running or about to start" in err, err
    reserved = [host.home / f".ddpctl/runs/{second}/reserved" for host in cluster]
    assert len(cluster.tickets) == 2 and all(each.exists() for each in reserved)
    for host in cluster:  # the hosts now have another account's home, with no files
        host.home = host.home.with_name(f"{host.name}-other")
        host.home.mkdir()
    for lease in (status.LEASE, 0):  # the tickets are alive, then expired
        monkeypatch.setattr(status, "LEASE", lease)
        code, _, err = cluster.ddpctl("clean", cluster.hosts_file, "--kill", "-y")
        assert code == 0 and "no traces of ddpctl" in err, err
        assert len(cluster.tickets) == 2


def test_a_run_that_waits_on_one_of_several_hosts_with_one_home_keeps_its_files(
    fake_cluster: Make,
) -> None:
    cluster = fake_cluster("gpu0", "gpu1", gpus=2, master_port="auto")
    store = cluster.share_home("gpu0", "gpu1")
    first, second = (cluster.launch("--wait", "--detach")[1].strip() for _ in range(2))
    assert cluster.ddpctl("kill", first)[0] == 0
    cluster.hosts["gpu0"].tickets.clear()  # gpu0 is the one that cleans the home
    code, _, err = cluster.ddpctl("clean", cluster.hosts_file, "-y")
    assert code == 0 and f"gpu0: not cleaned: {second} is running or about to start" in err, err
    assert len(cluster.tickets) == 1 and (store / "runs" / second / "reserved").exists()


def while_asked(monkeypatch: pytest.MonkeyPatch, deed: Callable[[], object]) -> None:
    """Do `deed` while the user reads the list, before the answer "yes"."""
    monkeypatch.setattr("launcher.terminal.ask.can_ask", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda *_, **__: [deed()])


def test_a_host_where_a_run_is_launched_while_the_user_reads_the_list_is_not_cleaned(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster()
    stores = [host.home / ".ddpctl" for host in cluster]
    for store in stores:
        (store / "datasets").mkdir(parents=True)
    reserved = stores[1] / "runs" / "20261122-101500-ab12" / "reserved" / "1"
    while_asked(monkeypatch, lambda: reserved.mkdir(parents=True))
    code, _, err = cluster.ddpctl("clean", cluster.hosts_file)
    assert code == 6 and "gpu1: not cleaned: 20261122-101500-ab12" in err
    assert [store.exists() for store in stores] == [False, True]
    assert reserved.exists() and (stores[1] / "datasets").exists()


def test_a_run_that_is_resumed_while_the_user_reads_the_list_stays(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster("gpu0")
    cluster.nodes_end(1)
    assert cluster.launch()[0] == 1
    [node] = cluster.nodes
    while_asked(monkeypatch, lambda: setattr(node, "state", "running"))
    assert cluster.ddpctl("clean", cluster.hosts_file)[0] == 6
    assert cluster.nodes == [node] and node.journal.exists()


def test_a_host_without_a_home_folder_is_named(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    cluster.hosts["gpu1"].install("readlink", "#!/bin/sh\nexit 1\n")
    code, _, err = cluster.ddpctl("clean", cluster.hosts_file, "-y")
    assert code != 0
    assert "gpu1: cannot find the account's home folder" in err
