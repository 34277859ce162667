"""What a host says about runs has effects on that host only. Here `evil` says what an attacker wants.

Run ids are public, and whoever may use Docker on one host can show any labels there.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from fakes import FakeCluster, FakeNode

from launcher.ssh.local import account_name
from launcher.stop import prune_pushed

Make = Callable[..., FakeCluster]
BOB = "bob@there"
ME = f"{account_name()}@here"


def show(cluster: FakeCluster, host: str, run_id: str, rank: int = 0, **fields: str) -> FakeNode:
    """Put a container on a host, running unless `state` says otherwise."""
    state = fields.pop("state", "running")
    labels = {"run-id": run_id, "attempt": "1", "node-rank": str(rank), "nnodes": "1", "owner": ME}
    labels |= {key.replace("_", "-"): value for key, value in fields.items()}
    folder = cluster.hosts[host].home / "elsewhere"
    folder.mkdir(exist_ok=True)
    node = FakeNode(
        {
            "name": f"ddpctl-{run_id}-{rank}",
            "labels": {f"io.ddpctl.{key}": value for key, value in labels.items()},
            "image": "any",
            "host_config": {"Binds": [f"{folder}:/ddpctl"]},
        },
        host,
        state=state,
    )
    cluster.hosts[host].nodes[node.arguments["name"]] = node
    return node


@pytest.mark.parametrize(
    "command", [["kill"], ["kill", "--all", "-y"], ["clean", "--kill", "-y"], ["kill", "--strays", "-y"]]
)  # fmt: skip
def test_a_host_that_shows_anothers_run_as_mine_has_it_stopped_nowhere_else(
    fake_cluster: Make, command: list[str]
) -> None:
    cluster = fake_cluster("evil", "good")
    show(cluster, "good", "bob-run", owner=BOB)
    lie = show(cluster, "evil", "bob-run")
    mounted = cluster.hosts["evil"].home / ".ddpctl" / "runs" / "bob-run"
    mounted.mkdir(parents=True)
    lie.arguments["host_config"]["Binds"].append(f"{mounted}:/output")
    code, _, err = cluster.ddpctl(command[0], cluster.hosts_file, *command[1:])
    assert code == 0, err
    assert [node.state for node in cluster.hosts["good"].nodes.values()] == ["running"]
    assert cluster.hosts["good"].count("stop") == 0


def test_a_run_that_was_launched_here_ends_in_the_record_only_with_its_own_hosts(
    fake_cluster: Make,
) -> None:
    cluster = fake_cluster("good0", "good1")
    run_id = cluster.launch("--detach")[1].strip()
    other = cluster.folder / "other.yaml"
    other.write_text(json.dumps({"hosts": [{"host": "evil", "gpus": 0}]}))
    cluster.hosts["evil"] = type(cluster.hosts["good0"])("evil", cluster.folder / "evil")
    show(cluster, "evil", run_id, owner=cluster.record["owner"])
    assert cluster.ddpctl("kill", str(other))[0] == 0
    assert cluster.record["state"] == "RUNNING"
    assert [node.host for node in cluster.nodes] == ["good0", "good1"]


def test_another_users_run_is_stopped_only_if_it_is_named_and_then_its_owner_is_said(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster("good")
    show(cluster, "good", "bob-run", owner=BOB)
    code, _, err = cluster.ddpctl("kill", cluster.hosts_file)
    assert code == 0 and "you have no live run" in err and cluster.nodes
    questions: list[str] = []
    monkeypatch.setattr("launcher.terminal.ask.can_ask", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda text, **_: questions.append(text))
    name = ["kill", "bob-run", "--hosts", cluster.hosts_file]
    assert cluster.ddpctl(*name)[0] == 130 and cluster.nodes
    assert questions == ["Stop run bob-run, which belongs to bob@there?"]
    assert cluster.ddpctl(*name, "-y")[0] == 0 and not cluster.nodes


def test_a_script_stops_another_users_run_by_its_whole_id_and_not_by_a_prefix(
    fake_cluster: Make,
) -> None:
    cluster = fake_cluster("good")
    show(cluster, "good", "bob-run", owner=BOB)
    code, _, err = cluster.ddpctl("kill", "bob", "--hosts", cluster.hosts_file)
    assert code == 2 and "bob-run belongs to bob@there" in err and "pass -y" in err
    assert cluster.nodes
    assert cluster.ddpctl("kill", "bob-run", "--hosts", cluster.hosts_file)[0] == 0
    assert not cluster.nodes


def test_a_container_of_someone_else_that_carries_my_runs_id_is_left_alone(
    fake_cluster: Make,
) -> None:
    cluster = fake_cluster("good")
    run_id = cluster.launch("--detach")[1].strip()
    show(cluster, "good", run_id, 1, nnodes="2", owner=BOB)
    code, _, err = cluster.ddpctl("kill", run_id)
    assert code == 0 and f"did not touch nodes on good that belong to {BOB}" in err
    assert [node.node_rank for node in cluster.nodes] == [1]


@pytest.mark.parametrize(
    "lie",
    [
        {"rank": 0, "state": "exited"},  # the rank of a live node
        {"rank": 7, "state": "exited", "nnodes": "8"},  # a rank that the run does not have
        {"rank": 1, "state": "running", "nnodes": "999"},  # a run of which most nodes are missing
    ],
)
def test_a_host_outside_a_run_cannot_declare_it_dead(
    fake_cluster: Make, lie: dict[str, object]
) -> None:
    cluster = fake_cluster("good0", "good1", "evil")
    for rank in range(2):
        show(cluster, f"good{rank}", "mine", rank, nnodes="2")
    show(cluster, "evil", "mine", int(str(lie.pop("rank"))), **lie)  # type: ignore[arg-type]
    code, _, err = cluster.ddpctl("kill", cluster.hosts_file, "--strays", "-y")
    assert code == 0, err
    assert all(host.count("stop") == 0 for host in cluster if host.name != "evil")


def test_a_silent_host_is_no_reason_to_believe_another_about_its_rank(fake_cluster: Make) -> None:
    cluster = fake_cluster("good0", "good1", "evil")
    for rank in range(2):
        show(cluster, f"good{rank}", "mine", rank, nnodes="2")
    show(cluster, "evil", "mine", 1, nnodes="2", state="exited")
    cluster.hosts["good1"].reachable = False
    assert cluster.ddpctl("kill", cluster.hosts_file, "--strays", "-y")[0] == 6
    assert cluster.hosts["good0"].count("stop") == 0


def test_one_host_does_not_decide_which_run_is_the_newest(fake_cluster: Make) -> None:
    cluster = fake_cluster("good", "evil")
    cluster.nodes_end(exit_code=0)
    assert cluster.launch()[0] == 0
    run_id = cluster.record["run_id"]
    show(cluster, "evil", "zzz-run")
    (cluster.hosts["evil"].home / ".ddpctl/runs/zzz-run/nodes").mkdir(parents=True)
    cluster.forget()
    code, _, err = cluster.ddpctl("logs", cluster.hosts_file)
    assert code == 2 and run_id in err and "only evil lists it" in err
    code, _, err = cluster.ddpctl("logs", run_id, "--hosts", cluster.hosts_file)
    assert code == 0, err


def test_the_code_that_one_host_uses_keeps_nothing_on_another(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prune_pushed, "MIN_AGE", -1)
    cluster = fake_cluster("good", "evil")
    tree = "datasets/" + "a" * 64
    for host in cluster:
        (host.home / ".ddpctl" / tree).mkdir(parents=True)
    lie = show(cluster, "evil", "any", state="exited")
    lie.arguments["host_config"]["Binds"].append(f"/home/x/.ddpctl/{tree}:/data")
    code, _, err = cluster.ddpctl("push", cluster.hosts_file, "--prune", "-y")
    assert code == 0, err
    assert not (cluster.hosts["good"].home / ".ddpctl" / tree).exists()
    assert (cluster.hosts["evil"].home / ".ddpctl" / tree).exists()


# --- labels that cannot be read -----------------------------------------------------------------


ODD = {
    "since": "999999999999.039",
    "attempt": "0",
    "node-rank": "5",
    "gpus": "a b",
    "run-id": "../x",
}


@pytest.mark.parametrize("flags", [[], ["--all", "-y"]])
def test_an_unreadable_container_of_the_only_run_on_the_hosts_is_never_nothing(
    fake_cluster: Make, flags: list[str]
) -> None:
    cluster = fake_cluster("good", "evil")
    run_id = cluster.launch("--detach")[1].strip()
    [node] = cluster.hosts["evil"].nodes.values()
    node.arguments["labels"]["io.ddpctl.attempt"] = "odd"
    code, _, err = cluster.ddpctl("kill", cluster.hosts_file, *flags)
    assert code == 6 and f"ddpctl-{run_id}-1 (its labels are unreadable)" in err
    assert cluster.record["pending_stop"] == ["evil"]
    assert not cluster.hosts["good"].nodes


@pytest.mark.parametrize(("label", "value"), ODD.items())
def test_a_container_that_is_named_like_the_run_is_never_nothing(
    fake_cluster: Make, label: str, value: str
) -> None:
    cluster = fake_cluster("good", "evil")
    run_id = cluster.launch("--detach")[1].strip()
    [node] = cluster.hosts["evil"].nodes.values()
    node.arguments["labels"][f"io.ddpctl.{label}"] = value
    code, _, err = cluster.ddpctl("kill", run_id)
    assert code == 6 and f"ddpctl-{run_id}-1 (its labels are unreadable)" in err
    assert cluster.record["pending_stop"] == ["evil"]
    assert not cluster.hosts["good"].nodes
    code, _, err = cluster.ddpctl("kill", cluster.hosts_file)
    assert code == 6 and f"evil: cannot read the labels of ddpctl-{run_id}-1" in err


def test_a_container_that_is_named_like_another_run_does_not_matter(fake_cluster: Make) -> None:
    cluster = fake_cluster("good")
    run_id = cluster.launch("--detach")[1].strip()
    show(cluster, "good", f"{run_id}-2", attempt="x")
    show(cluster, "good", "check-0123abcd").arguments["labels"].update({"io.ddpctl.check": "1"})
    assert cluster.ddpctl("kill", run_id)[0] == 0


def test_a_container_of_yours_whose_name_is_not_a_runs_blocks_no_kill(fake_cluster: Make) -> None:
    cluster = fake_cluster("good")
    show(cluster, "good", "stranger").arguments["labels"].clear()  # named ddpctl-stranger-0
    assert "ddpctl-stranger-0" in cluster.hosts["good"].nodes
    code, _, err = cluster.ddpctl("kill", cluster.hosts_file, "--all", "--yes")
    assert code == 0, err


def test_a_clock_that_is_far_off_does_not_reach_the_labels(fake_cluster: Make) -> None:
    cluster = fake_cluster("evil", "good")
    cluster.hosts["evil"].install("date", "#!/bin/sh\necho 999999999999.039\n")
    code, _, err = cluster.launch("--detach")
    assert code == 0, err
    for node in cluster.nodes:
        since = float(node.arguments["labels"]["io.ddpctl.since"])
        assert 1.6e9 < since < 1e10
    assert cluster.ddpctl("kill", cluster.record["run_id"])[0] == 0 and not cluster.nodes
