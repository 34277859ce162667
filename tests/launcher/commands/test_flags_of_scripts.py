"""Arguments that are read differently from what a user may expect."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from fakes import FakeCluster

from launcher.errors import PushFailed
from launcher.push import push

Make = Callable[..., FakeCluster]


@pytest.mark.parametrize(
    ("given", "better"),
    [
        (["hosts.yaml", "train.py", "--steps", "5"], "hosts.yaml -- train.py --steps 5"),
        (
            ["hosts.yaml", "-d", "-m", "trainer", "--lr=1 e"],
            "hosts.yaml -d -- -m trainer '--lr=1 e'",
        ),
        (["hosts.yaml", "--name", "a", "bin/train", "-x"], "hosts.yaml --name a -- bin/train -x"),
        (["hosts.yaml", "--no-python", "./go", "-x"], "hosts.yaml -- --no-python ./go -x"),
        (["hosts.yaml", "train.py"], "hosts.yaml -- train.py"),
        (["train.py", "--steps", "5"], "-- train.py --steps 5"),
        (["python", "train.py"], "-- python train.py"),
        (["torchrun", "--nproc-per-node", "2", "t.py"], "--nproc-per-node 2 -- torchrun t.py"),
        (["-H", "a:1", "bin/train"], "-H a:1 -- bin/train"),
        (["hosts.yaml", "t.py", "--", "--steps", "5"], "hosts.yaml -- t.py --steps 5"),
    ],
)
def test_a_forgotten_separator_is_one_line_with_the_right_command(
    fake_cluster: Make, given: list[str], better: str
) -> None:
    code, _, err = fake_cluster().ddpctl("launch", *given)
    assert code == 2
    assert err == f"ddpctl: error: put `--` before the command: ddpctl launch {better}\n"


def test_exec_takes_a_run_and_the_hosts_to_look_on(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    words = ("exec", "lost", "--hosts", cluster.hosts_file, "--node", "1", "--", "true")
    assert "too many" not in cluster.ddpctl(*words)[2]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        *((word, "`ddpctl launch`") for word in ("run", "start", "srun", "lanch")),
        *((word, "`ddpctl kill`") for word in ("stop", "cancel", "scancel")),
        *((word, "`ddpctl ps`") for word in ("status", "list", "ls", "squeue")),
        ("bench", "`ddpctl sanity`"),
        ("train.py", "`ddpctl launch --`"),
        ("lab.yaml", "`ddpctl check hosts.yaml`"),
        ("xyzzy", "`ddpctl help`"),
    ],
)
def test_commands_of_other_tools_are_understood(given: str, meant: str, fake_cluster: Make) -> None:
    code, _, err = fake_cluster().ddpctl(given, "--dry-run")
    assert (code, meant in err, err.count("\n")) == (2, True, 1), err


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["launch", "--gpus", "4"], "--nproc-per-node"),
        (["launch", "--nnodes", "2"], "--nodes N"),
        (["launch", "--dry-rum"], "did you mean --dry-run?"),
        (["launch", "--epochs", "3"], "after `--`"),
        (["launch", "gpu1", "gpu2", "--", "t.py"], "-H gpu1,gpu2"),
        (["launch", "hosts.yaml", "--env", "A=1", "B=2", "--", "t.py"], "repeat --env"),
        (["launch", "hosts.yaml", "-e", "A=1", "B=2", "--", "t.py"], "repeat --env"),
        (["launch", "hosts.yaml", "--name"], "requires an argument"),
        (["launch", "hosts.yaml", "--nodes", "0"], "pass 1 or more"),
        (["launch", "hosts.yaml", "--time-limit", "24"], "write 24h or 24m"),
        (["launch", "hosts.yaml", "--wait-limit", "24"], "write 24h or 24m"),
        (["launch", "hosts.yaml", "--wait", "24"], "write 24h or 24m"),
        (["launch", "hosts.yaml", "--wait=24"], "write 24h or 24m"),
        (["launch", "hosts.yaml", "--wait=soon"], "write a duration such as 90s, 30m, 2h30m"),
        (["ps", "--interval", "2"], "write 2h or 2m"),
        (["sanity", "--timeout", "300"], "write 300m or 300s"),
        (["kill", "hosts.yaml", "--all"], "pass -y"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line_with_a_remedy(
    given: list[str], meant: str, fake_cluster: Make
) -> None:
    code, _, err = fake_cluster().ddpctl(*given)
    assert (code, meant in err, err.count("\n")) == (2, True, 1), err


@pytest.mark.parametrize(
    "given", [["-H", "gpu0"], ["--hosts", "gpu0:0"], ["-f", "hosts.yaml"], ["gpu0,"]]
)
def test_hosts_are_named_in_the_same_ways_everywhere(given: list[str], fake_cluster: Make) -> None:
    cluster = fake_cluster("gpu0")
    cluster.nodes_end(exit_code=0)
    assert cluster.launch()[0] == 0
    for command in (["ps", "--all"], ["logs"], ["fetch"], ["kill"], ["clean", "-y"]):
        if command == ["logs"] and given[0] == "-f":
            continue  # which follows
        code, _, err = cluster.ddpctl(*command, *given)
        assert code == 0, (command, err)


def test_help_and_version_are_commands_too(fake_cluster: Make) -> None:
    ddpctl = fake_cluster().ddpctl
    assert ddpctl("help") == ddpctl("--help")
    assert ddpctl("help", "launch")[1].startswith(
        "Usage: ddpctl launch [HOSTS] [FLAGS] [-- COMMAND...]\n"
    )
    assert ddpctl("version") == ddpctl("-V") == ddpctl("--version")


def test_flags_of_ddpctl_stay_before_the_separator_in_the_hint(fake_cluster: Make) -> None:
    given = ["t.py", "--steps", "5", "--dry-run", "-qv", "--env=A=1", "--master_port", "50"]
    code, _, err = fake_cluster().ddpctl("launch", "hosts.yaml", *given)
    ours = "hosts.yaml --dry-run -qv --env=A=1 --master_port 50"
    assert (code, f": ddpctl launch {ours} -- t.py --steps 5\n" in err) == (2, True), err


def test_wait_takes_a_duration_too(fake_cluster: Make) -> None:
    ddpctl = fake_cluster().ddpctl
    for given in (["--wait", "8h"], ["--wait=8h"], ["--wait-limit", "8h"]):
        code, out, err = ddpctl("launch", "hosts.yaml", "--dry-run", *given)
        assert (code, "wait          8h" in out) == (0, True), err
    assert "as long as it takes" in ddpctl("launch", "--wait", "hosts.yaml", "--dry-run")[1]


def test_a_wrong_flag_before_the_script_is_named(fake_cluster: Make) -> None:
    code, _, err = fake_cluster().ddpctl("launch", "hosts.yaml", "--steps", "5", "train.py")
    assert (code, "no flag --steps" in err) == (2, True), err


def test_an_empty_hosts_argument_is_the_hosts_file_here(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    for hosts in ([""], ["-H", ""]):
        code, _, err = cluster.ddpctl("launch", *hosts, "--dry-run")
        assert code == 0, err


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        ([], {"image", "dataset", "workdir"}),
        (["--image"], {"image"}),
        (["--image", "--workdir"], {"image", "workdir"}),
        (["--dataset"], {"dataset"}),
    ],
)
def test_push_sends_only_the_named_parts(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch, flags: list[str], parts: set[str]
) -> None:
    pushed = []

    def note(nodes, cluster, *, parts, **how):  # type: ignore[no-untyped-def]
        pushed.append(parts)
        raise PushFailed("enough")

    monkeypatch.setattr(push, "push", note)
    assert fake_cluster().ddpctl("push", *flags, "hosts.yaml")[0] == 5
    assert pushed == [parts]


def test_a_scheduler_is_named_like_a_list_of_hosts(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "gpu[1-2]")
    cluster = fake_cluster()
    for given in (["-H", "slurm"], ["slurm"]):
        words = ["launch", *given, "--dry-run", "--json", "--", "-m", "trainer"]
        plan = json.loads(cluster.ddpctl(*words)[1])
        assert [node["host"] for node in plan["nodes"]] == ["gpu1", "gpu2"]
