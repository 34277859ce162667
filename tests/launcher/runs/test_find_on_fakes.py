"""Which run a word means, on hosts that answer and on hosts that do not."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
from fakes import FakeCluster, messages

from launcher.runs.find import newest_run
from launcher.text import quoted

Make = Callable[..., FakeCluster]


@pytest.mark.parametrize("command", ["logs", "attach", "fetch", "report"])
def test_hosts_that_do_not_answer_are_named_and_not_said_to_have_no_run(
    fake_cluster: Make, command: str
) -> None:
    cluster = fake_cluster("gpu0", "gpu1")
    for host in cluster:
        host.reachable = False
    code, out, err = cluster.ddpctl(command, cluster.hosts_file)
    assert (code, out) == (4, "")
    [only] = messages(err)
    assert only.startswith("ddpctl: error: gpu[0-1]: no answer")


def test_no_run_is_claimed_only_for_the_hosts_that_answered(fake_cluster: Make) -> None:
    cluster = fake_cluster("gpu0", "gpu1")
    cluster.hosts["gpu1"].reachable = False
    code, _, err = cluster.ddpctl("logs", cluster.hosts_file)
    first, second = messages(err)
    assert code == 4
    assert first.startswith("ddpctl: error: gpu1: no answer")
    assert "no run on gpu0;" in second


def test_another_machine_does_not_forget_a_silent_host_that_has_the_last_node(
    fake_cluster: Make,
) -> None:
    cluster = fake_cluster("gpu0", "gpu1", "gpu2")
    assert cluster.launch("--detach")[0] == 0
    run_id = cluster.record["run_id"]
    cluster.forget()
    cluster.hosts["gpu2"].reachable = False
    code, _, err = cluster.ddpctl("logs", run_id, "--hosts", cluster.hosts_file)
    assert (code, "gpu2: no answer" in err) == (4, True), err
    assert [node["host"] for node in cluster.record["attempts"][0]["nodes"]] == [*cluster.hosts]
    code, _, err = cluster.ddpctl("kill", run_id)
    assert (code, "gpu2: stop not confirmed" in err) == (6, True), err


@pytest.mark.parametrize("command", ["attach", "exec", "fetch", "kill", "logs", "report", "stacks"])
def test_hosts_given_twice_are_a_usage_error(fake_cluster: Make, command: str) -> None:
    cluster = fake_cluster("gpu0")
    assert cluster.launch("--detach")[0] == 0
    rest = ["--", "true"] if command == "exec" else []
    given = [command, cluster.hosts_file, "--hosts", "gpu7,gpu8", *rest]
    code, _, err = cluster.ddpctl(*given)
    assert (code, len(messages(err))) == (2, 1), err
    assert (
        f"hosts given twice, as {quoted(cluster.hosts_file)} and gpu7,gpu8; pass one of them" in err
    )
    assert len(cluster.nodes) == 1


def test_hosts_without_a_run_are_a_usage_error(fake_cluster: Make) -> None:
    cluster = fake_cluster("gpu0", "gpu1")
    code, _, err = cluster.ddpctl("logs", cluster.hosts_file)
    assert code == 2
    assert "no run on gpu[0-1]; start one with `ddpctl launch`" in err


def test_a_sanity_run_on_the_hosts_is_not_their_newest_run(fake_cluster: Make) -> None:
    cluster = fake_cluster("gpu0")
    run_id = "sanity-20261121-100000-abcd"
    (cluster.hosts["gpu0"].home / f".ddpctl/runs/{run_id}/nodes/0/attempt-1").mkdir(parents=True)
    code, _, err = cluster.ddpctl("logs", cluster.hosts_file)
    assert (code, "no run on gpu0" in err) == (2, True), err


def test_the_newest_run_is_not_that_of_another_account_whose_files_cannot_be_read(
    fake_cluster: Make,
) -> None:
    cluster = fake_cluster("gpu0", "gpu1")
    for host in cluster:
        host.on_start = lambda node: (node.say("mine"), node.end(0))
    assert cluster.launch()[0] == 0
    mine = cluster.record["run_id"]
    cluster.forget()
    for host in cluster:
        host.on_start = lambda node: None
    assert cluster.launch("--detach", "--name", "theirs")[0] == 0
    theirs = cluster.record["run_id"]
    cluster.forget()
    for host in cluster:
        shutil.rmtree(host.home / ".ddpctl/runs" / theirs)
    code, out, err = cluster.ddpctl("logs", cluster.hosts_file)
    assert code == 0 and "mine" in out and f"{mine}: no record on this machine" in err, err
    code, _, err = cluster.ddpctl("logs", theirs, "--hosts", cluster.hosts_file)
    assert code == 2 and "if another account started it, only that account can read them" in err


def test_the_newest_run_is_the_latest_whatever_its_name() -> None:
    earlier, later = "zz-20261120-100000-abcd", "20261121-100000-abcd"
    assert newest_run([{earlier: False, later: False}]) == later
    assert newest_run([{earlier: True}, {later: False}]) == earlier


@pytest.mark.parametrize("command", ["logs", "attach", "fetch", "stacks", "exec"])
def test_a_host_that_is_missing_in_the_kept_hosts_file_is_one_line(
    fake_cluster: Make, command: str
) -> None:
    cluster = fake_cluster("gpu0", "gpu1")
    code, out, err = cluster.launch("--detach")
    assert code == 0, err
    [file] = cluster.state.glob("ddpctl/runs/*/hosts.yaml")
    file.write_text("hosts: [gpu0]\n")
    rest = ["--", "true"] if command == "exec" else []
    code, _, err = cluster.ddpctl(command, out.strip(), *rest)
    assert (code, len(messages(err))) == (2, 1), err
    assert "hosts.yaml: host gpu1 of node 1 is missing; put it back" in err


def test_a_host_that_was_added_to_the_kept_hosts_file_hides_no_node(fake_cluster: Make) -> None:
    cluster = fake_cluster("gpu0", "gpu1")
    code, out, err = cluster.launch("--detach")
    assert code == 0, err
    for node in cluster.nodes:
        node.say(f"from {node.host}", node.node_rank)
    [file] = cluster.state.glob("ddpctl/runs/*/hosts.yaml")
    file.write_text(file.read_text().replace("hosts:\n", "hosts:\n- gpu9\n"))
    code, out, err = cluster.ddpctl("logs", out.strip())
    assert code == 0, err
    assert out == "[gpu0:0] from gpu0\n[gpu1:1] from gpu1\n"
