"""Arguments that are read differently from what a user may expect."""

from __future__ import annotations

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


def test_flags_of_ddpctl_stay_before_the_separator_in_the_hint(fake_cluster: Make) -> None:
    given = ["t.py", "--steps", "5", "--dry-run", "-qv", "--env=A=1", "--master_port", "50"]
    code, _, err = fake_cluster().ddpctl("launch", "hosts.yaml", *given)
    ours = "hosts.yaml --dry-run -qv --env=A=1 --master_port 50"
    assert (code, f": ddpctl launch {ours} -- t.py --steps 5\n" in err) == (2, True), err


def test_wait_with_a_value_names_the_flag_that_takes_one(fake_cluster: Make) -> None:
    code, _, err = fake_cluster().ddpctl("launch", "hosts.yaml", "--wait", "8h")
    assert (code, "write --wait-limit 8h" in err) == (2, True), err


def test_a_wrong_flag_before_the_script_is_named(fake_cluster: Make) -> None:
    code, _, err = fake_cluster().ddpctl("launch", "hosts.yaml", "--steps", "5", "train.py")
    assert (code, "No such option: --steps" in err) == (2, True), err


def test_an_empty_hosts_argument_is_the_hosts_file_here(fake_cluster: Make) -> None:
    code, _, err = fake_cluster().ddpctl("launch", "", "--dry-run")
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
