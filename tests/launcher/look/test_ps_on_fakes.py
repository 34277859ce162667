"""`ps` on fake hosts: what the hosts' engines know, from any machine."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes import FakeCluster, messages, signal_once_started

from launcher.terminal.console import Console

Make = Callable[..., FakeCluster]


def test_a_machine_without_a_record_sees_the_same_runs(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    run_id = cluster.launch("--detach")[1].strip()
    cluster.forget()
    code, out, err = cluster.ddpctl("ps", cluster.hosts_file, "--json")
    assert code == 0, err
    [run] = json.loads(out)["runs"]
    assert (run["run_id"], run["state"], len(run["nodes"])) == (run_id, "RUNNING", 2)


def test_a_host_that_is_down_hides_no_other_and_exits_with_4(fake_cluster: Make) -> None:
    cluster = fake_cluster("gpu0", "gpu1", "gpu2")
    run_id = cluster.launch("--detach")[1].strip()
    cluster.hosts["gpu1"].reachable = False
    code, out, err = cluster.ddpctl("ps", cluster.hosts_file)
    assert code == 4
    assert run_id in out
    assert "gpu1" in err


def test_hosts_that_did_not_answer_are_named_first_and_nothing_is_claimed_about_them(
    fake_cluster: Make,
) -> None:
    cluster = fake_cluster("gpu0", "gpu1", "gpu2")
    cluster.hosts["gpu1"].reachable = cluster.hosts["gpu2"].reachable = False
    code, out, err = cluster.ddpctl("ps", cluster.hosts_file)
    first, second = messages(err)
    assert (code, out) == (4, "")
    assert first.startswith("ddpctl: error: gpu[1-2]: no answer")
    assert second.startswith("ddpctl: no live run on gpu0;")
    cluster.hosts["gpu0"].reachable = False
    code, _, err = cluster.ddpctl("ps", cluster.hosts_file)
    [only] = messages(err)
    assert code == 4 and only.startswith("ddpctl: error: gpu[0-2]: no answer")


def test_a_recorded_live_run_is_shown_although_none_of_its_hosts_answers(
    fake_cluster: Make,
) -> None:
    """Not to see a run does not mean that it has ended."""
    cluster = fake_cluster("gpu0", "gpu1", "gpu2")
    cluster.nodes_end(0)
    assert cluster.launch("--include", "gpu1@gpu2")[0] == 0
    for host in cluster:
        host.on_start = lambda node: None
    run_id = cluster.launch("--detach", "--include", "gpu1@gpu2")[1].strip()
    cluster.hosts["gpu1"].reachable = cluster.hosts["gpu2"].reachable = False
    code, out, err = cluster.ddpctl("ps", cluster.hosts_file)
    assert code == 4
    [row] = [line.split() for line in out.splitlines() if line.startswith("202")]
    assert row[:2] == [run_id, "UNKNOWN"] and row[-1] == "gpu[1-2]", out
    assert messages(err)[1] == (
        f"ddpctl: no host of {run_id} answers, so it may still be running; "
        "the row is from this machine's record"
    )
    _, out, _ = cluster.ddpctl("ps", cluster.hosts_file, "--per-node")
    assert [line.split()[:5] for line in out.splitlines() if line.startswith("202")] == [
        [run_id, "1", f"{rank}/2", f"gpu{rank + 1}", "unknown"] for rank in range(2)
    ]
    [run] = json.loads(cluster.ddpctl("ps", cluster.hosts_file, "--json")[1])["runs"]
    assert (run["run_id"], run["state"], run["nnodes"]) == (run_id, "UNKNOWN", 2)
    assert {(node["host"], node["state"]) for node in run["nodes"]} == {
        ("gpu1", "unknown"),
        ("gpu2", "unknown"),
    }


def test_a_run_that_was_recorded_as_live_is_not_shown_if_one_of_its_hosts_knows_better(
    fake_cluster: Make,
) -> None:
    cluster = fake_cluster("gpu0", "gpu1")
    assert cluster.launch("--detach")[0] == 0
    for node in cluster.nodes:
        node.end(0)
    cluster.hosts["gpu1"].reachable = False
    code, out, _ = cluster.ddpctl("ps", cluster.hosts_file)
    assert (code, out) == (4, "")


def test_a_run_that_has_ended_is_not_shown_if_its_host_then_fails_to_report_its_gpus(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record says that the run is live if the launcher has died."""
    cluster = fake_cluster("gpu0", gpus=1)
    assert cluster.launch("--detach")[0] == 0
    cluster.nodes[0].end(0)
    cluster.hosts["gpu0"].install("nvidia-smi", "#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr("launcher.look.ps_runs.TIMEOUT", 1.0)
    code, out, err = cluster.ddpctl("ps", cluster.hosts_file)
    assert (code, out) == (4, "") and "may still be running" not in err, err


def test_only_live_runs_are_shown_if_their_host_lists_its_nodes_but_not_their_details(
    fake_cluster: Make,
) -> None:
    cluster = fake_cluster("gpu0")
    assert cluster.launch("--detach")[0] == 0
    cluster.nodes[0].end(0)
    run_id = cluster.launch("--detach")[1].strip()
    cluster.hosts["gpu0"].refuses["inspect_container"] = "it is locked"
    code, out, err = cluster.ddpctl("ps", cluster.hosts_file)
    rows = [line.split()[:2] for line in out.splitlines() if line.startswith("202")]
    assert (code, rows) == (4, [[run_id, "RUNNING"]]), out + err


def test_odd_labels_are_skipped_and_the_other_runs_are_shown(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    run_id = cluster.launch("--detach")[1].strip()
    cluster.nodes[1].arguments["labels"]["io.ddpctl.attempt"] = "abc"
    code, out, err = cluster.ddpctl("ps", cluster.hosts_file)
    assert code == 0, err
    assert run_id in out


def test_without_runs_there_is_one_line_and_no_table(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    code, out, err = cluster.ddpctl("ps", cluster.hosts_file)
    assert (code, out) == (0, "")
    assert "no " in err


def test_without_hosts_and_records_the_message_says_that_no_host_was_asked(
    fake_cluster: Make,
) -> None:
    cluster = fake_cluster()
    Path(cluster.hosts_file).rename(cluster.folder / "lab.yaml")
    code, out, err = cluster.ddpctl("ps")
    assert (code, out) == (0, "")
    assert "records of live runs" in err and "run `ddpctl ps HOSTS`" in err
    assert all(host.asked == [] for host in cluster)


def test_a_host_of_several_hosts_files_is_counted_once(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    run_id = cluster.launch("--detach", "--include", next(iter(cluster.hosts)))[1].strip()
    code, out, err = cluster.ddpctl("ps", "-v")
    assert (code, out.count(run_id)) == (0, 1)
    assert "ddpctl: asking 2 hosts ...\n" in err


def all_runs(cluster: FakeCluster) -> list[tuple[str, str, int, str]]:
    code, out, err = cluster.ddpctl("ps", cluster.hosts_file, "--all", "--json")
    assert code == 0, err
    return [(r["run_id"], r["state"], r["nnodes"], r["name"]) for r in json.loads(out)["runs"]]


def test_a_node_that_two_hosts_files_list_under_two_names_is_counted_once(
    fake_cluster: Make,
) -> None:
    cluster = fake_cluster()
    assert cluster.launch("--detach")[0] == 0
    cluster.hosts["10.0.0.1"] = cluster.hosts["gpu0"]
    file = Path(cluster.hosts_file)
    file.write_text(file.read_text().replace('"gpu0"', '"10.0.0.1"'))
    _, out, _ = cluster.ddpctl("ps")
    assert " 2/2 " in out, out


def test_a_killed_run_stays_visible_from_any_machine_until_clean(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    run_id = cluster.launch("--detach", "--name", "big")[1].strip()
    assert cluster.ddpctl("kill", run_id)[0] == 0
    cluster.forget()
    assert all_runs(cluster) == [(run_id, "CANCELLED", 2, "big")]
    assert cluster.ddpctl("ps", cluster.hosts_file)[1] == ""  # as other runs that have ended
    code, _, err = cluster.ddpctl("clean", cluster.hosts_file, "-y")
    assert code == 0, err
    assert all_runs(cluster) == []


def test_a_run_that_had_succeeded_before_it_was_killed_is_not_cancelled(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    cluster.nodes_end(exit_code=0)
    assert cluster.launch()[0] == 0
    run_id = cluster.record["run_id"]
    assert all_runs(cluster)[0][:2] == (run_id, "SUCCEEDED")
    assert cluster.ddpctl("kill", run_id)[0] == 0
    assert cluster.nodes == []
    assert all_runs(cluster)[0][:2] == (run_id, "SUCCEEDED")


def test_an_interrupted_run_is_cancelled_for_any_machine(fake_cluster: Make) -> None:
    """Its containers are kept, and say only that they were stopped."""
    cluster = fake_cluster()
    signal_once_started(cluster, signal.SIGINT)
    assert cluster.launch()[0] == 130
    assert [node.state for node in cluster.nodes] == ["exited", "exited"]
    assert {node["state"] for node in cluster.record["attempts"][0]["nodes"]} == {"CANCELLED"}
    cluster.forget()
    assert [state for _, state, _, _ in all_runs(cluster)] == ["CANCELLED"]


def test_a_run_that_has_ended_is_shown_with_all_only(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    cluster.nodes_end(exit_code=1)
    assert cluster.launch()[0] == 1
    assert cluster.ddpctl("ps", cluster.hosts_file)[1] == ""
    assert all_runs(cluster)[0][:2] == (cluster.record["run_id"], "FAILED")


def test_a_host_is_asked_for_details_only_of_the_runs_that_are_shown(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    host = cluster.hosts["gpu1"]

    def ps(*flags: str) -> tuple[list[int | None], int]:
        """Return the nodes' exit codes, and how many of its nodes gpu1 was asked about."""
        before = host.count("inspect_container")
        out = cluster.ddpctl("ps", cluster.hosts_file, "--json", *flags)[1]
        codes = [node["exit_code"] for run in json.loads(out)["runs"] for node in run["nodes"]]
        return codes, host.count("inspect_container") - before

    host.on_start = lambda node: node.exit(3)
    cluster.launch("--detach")
    assert ps() == ([None, 3], 1)
    cluster.nodes[0].exit(0)
    assert ps() == ([], 0)
    assert ps("--all") == ([0, 3], 1)


def test_gpus_are_shown_even_if_the_first_entry_of_their_host_uses_none(fake_cluster: Make) -> None:
    cluster = fake_cluster("gpu0")
    entries = [{"host": "gpu0", "gpus": 0}, {"host": "gpu0", "gpus": "all"}]
    Path(cluster.hosts_file).write_text(json.dumps({"hosts": entries, "job": {"image": "any:1"}}))
    cluster.hosts["gpu0"].install(
        "nvidia-smi",
        "#!/bin/sh\ncase $* in *--query-gpu*) echo 0, GPU-a, 5, 10, 81559, H100 ;; esac\n",
    )
    code, out, err = cluster.ddpctl("ps", cluster.hosts_file, "--json")
    assert (code, [gpu["uuid"] for gpu in json.loads(out)["gpus"]]) == (0, ["GPU-a"]), err


@pytest.mark.parametrize("flags", [[], ["--all"], ["--per-node"]])
def test_the_tables_fit_a_terminal_of_80_columns_and_are_whole_elsewhere(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch, flags: list[str]
) -> None:
    cluster = fake_cluster("node0.lab", "node1.lab", gpus=2)
    cluster.launch("--detach", "--name", "a-name-of-twenty-chars")
    monkeypatch.setenv("COLUMNS", "80")
    assert " OWNER " in cluster.ddpctl("ps", cluster.hosts_file, *flags)[1]
    monkeypatch.setattr(Console, "on_terminal", True)
    out = cluster.ddpctl("ps", cluster.hosts_file, *flags)[1]
    assert "RUNNING" in out.upper() and max(map(len, out.splitlines())) <= 80, out


def test_a_node_whose_container_was_removed_by_hand_has_no_end(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    cluster.launch("--detach")
    for host in cluster:
        host.nodes.clear()
    assert all_runs(cluster) == []


def test_a_killed_run_is_found_on_the_hosts_by_a_prefix_of_its_id(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    run_id = cluster.launch("--detach")[1].strip()
    assert cluster.ddpctl("kill", run_id)[0] == 0
    cluster.forget()
    code, _, err = cluster.ddpctl("logs", run_id[:-1], "--hosts", cluster.hosts_file)
    assert code == 0 and run_id in err, err


LISTS: list[object] = [None, [], [{"Id": "a", "Labels": 5, "Mounts": [5]}]]
LIES = [None, 7, [], [None], [{"Id": 7}], {"x": 1}, [{"Id": "a", "Labels": 5, "Mounts": [5]}]]


@pytest.mark.parametrize("answer", [*LIES, {"Name": 5, "State": "0", "Config": {"Labels": [1]}}])
@pytest.mark.parametrize("call", ["containers", "inspect_container"])
def test_a_host_that_answers_nonsense_hides_no_other_host(
    fake_cluster: Make, call: str, answer: object
) -> None:
    cluster = fake_cluster()
    run_id = cluster.launch("--detach")[1].strip()
    cluster.hosts["gpu1"].lies[call] = answer
    for command in (["ps"], ["ps", "--all"], ["clean"]):
        code, out, err = cluster.ddpctl(*command, cluster.hosts_file)
        unusable = call == "containers" and answer not in LISTS
        assert code == (4 if unusable else 0) and run_id in out + err, err
