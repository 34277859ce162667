"""What counts as a leftover of a dead run, and what never does."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from builders import node_status as node

from launcher.engines.status import NodeStatus
from launcher.hosts import Cluster, Host, Job
from launcher.ssh.host_connection import HostConnection
from launcher.stop.inventory import RunProcess, take_inventory
from launcher.stop.strays import RunTraces, Stray, end_strays, run_traces, strays_of


def seen(*statuses: NodeStatus, processes: tuple[RunProcess, ...] = ()) -> RunTraces:
    return RunTraces(statuses, processes, {})


def handles(hosts: dict[str, RunTraces], *, complete: bool = True) -> list[str]:
    return [stray.handle for stray in strays_of(hosts, "ann", complete=complete)]


def test_a_run_whose_nodes_are_all_alive_has_none() -> None:
    assert handles({"h0": seen(node("r", 0, "running")), "h1": seen(node("r", 1, "running"))}) == []


def test_a_node_that_lives_on_after_another_ended_is_one() -> None:
    hosts = {"h0": seen(node("r", 0, "exited")), "h1": seen(node("r", 1, "running"))}
    assert handles(hosts) == ["ddpctl-r-1"]


def test_a_node_that_was_never_started_is_one() -> None:
    hosts = {"h0": seen(node("r", 0, "created")), "h1": seen()}
    assert handles(hosts) == ["ddpctl-r-0"]


def test_a_node_that_saves_its_last_checkpoint_after_another_has_succeeded_is_none() -> None:
    ended = replace(node("r", 1, "exited"), exit_code=0)
    assert handles({"h0": seen(node("r", 0, "running")), "h1": seen(ended)}) == []


@pytest.mark.parametrize("state", ["created", "running"])
def test_a_node_of_a_launch_that_is_creating_the_others_is_none(state: str) -> None:
    young = replace(node("r", 0, state), age=5.0)
    assert handles({"h0": seen(young), "h1": seen()}) == []
    assert handles({"h0": seen(replace(young, age=61.0)), "h1": seen()}) == ["ddpctl-r-0"]


@pytest.mark.parametrize(("handle", "kind"), [("ddpctl-r-0", "container"), ("/r/0", "node")])
def test_only_a_node_in_a_container_is_called_one(handle: str, kind: str) -> None:
    hosts = {"h0": seen(replace(node("r", 0, "created"), handle=handle)), "h1": seen()}
    assert [stray.kind for stray in strays_of(hosts, "ann", complete=True)] == [kind]


def test_losing_contact_with_a_host_does_not_end_its_node() -> None:
    hosts = {"h0": seen(node("r", 0, "running"))}
    assert handles(hosts, complete=False) == []
    assert handles(hosts, complete=True) == ["ddpctl-r-0"]


def test_containers_of_other_people_are_never_touched() -> None:
    theirs = node("r", 1, "running", owner="bob@there")
    hosts = {"h0": seen(node("r", 0, "exited", owner="bob@there")), "h1": seen(theirs)}
    assert handles(hosts) == []


def test_processes_of_other_peoples_runs_are_never_touched() -> None:
    theirs = node("r", 1, "running", owner="bob@there")
    hosts = {"h0": seen(processes=(RunProcess(41, "r", "python3"),)), "h1": seen(theirs)}
    assert handles(hosts) == []


def test_root_sees_only_processes_of_its_own_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed() -> Sequence[RunProcess]:
        return take_inventory(HostConnection(Host("local")), folder=False).processes

    monkeypatch.setenv("HOME", str(tmp_path))
    environment = {**os.environ, "DDPCTL_RUN_ID": "theirs"}
    process = subprocess.Popen(["sleep", "60"], env=environment)
    try:
        assert ("theirs" in [each.run_id for each in listed()]) == (os.getuid() != 0)
        (tmp_path / ".ddpctl" / "runs" / "theirs").mkdir(parents=True)
        assert RunProcess(process.pid, "theirs", "sleep") in listed()
    finally:
        process.kill()
        process.wait()


def test_a_process_without_a_living_node_of_its_run_is_one() -> None:
    processes = (RunProcess(41, "dead", "python3"), RunProcess(42, "r", "python3"))
    hosts = {"h0": seen(node("r", 0, "running", nnodes=1), processes=processes)}
    assert handles(hosts) == ["41"]


def test_the_gpu_memory_of_each_process_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\ncase $1 in --query-gpu=*) echo "0, GPU-1, 9, 9, 9, H100" ;;\n'
                    '--query-compute-apps=*) echo "GPU-1, 41, 70000" ;; esac\n')  # fmt: skip
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    here = Host("local")
    assert run_traces(HostConnection(here), Cluster((here,), Job(engine="process"))).gpu_mib == {
        41: 70000
    }


def test_the_gpu_memory_that_a_stray_holds_is_reported() -> None:
    hosts = {"h0": RunTraces((), (RunProcess(41, "dead", "python3"),), {41: 70000})}
    [stray] = strays_of(hosts, "ann", complete=True)
    assert stray.what == "python3, uses 70000 MiB of GPU memory"


def test_a_process_is_ended_by_the_account_that_found_it(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = tuple(Host("gpu1", user=user) for user in ("ann", "bob"))
    ended = []
    monkeypatch.setattr(
        HostConnection, "script", lambda self, _, *args: ended.append((self.host.user, *args))
    )
    stray = Stray("gpu1 (2)", "r", "process", "41", "python3")
    end_strays([HostConnection(host) for host in hosts], Cluster(hosts, Job()), [stray])
    assert ended == [("bob", "41", "r")]
