"""Arguments that are read differently from what a user may expect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fakes import FakeCluster

from launcher.errors import PushFailed
from launcher.push import push

Make = Callable[..., FakeCluster]


@pytest.mark.parametrize(
    ("given", "better"),
    [
        (["train.py", "--steps", "5"], "-- train.py --steps 5"),
        (["-d", "-m", "trainer", "--lr=1 e"], "-d -- -m trainer '--lr=1 e'"),
        (["--name", "a", "bin/train", "--steps", "5"], "--name a -- bin/train --steps 5"),
        (["--no-python", "./go", "-x"], "-- --no-python ./go -x"),
    ],
)
def test_a_forgotten_separator_is_one_line_with_the_right_command(
    fake_cluster: Make, given: list[str], better: str
) -> None:
    code, _, err = fake_cluster().ddpctl("launch", "hosts.yaml", *given)
    assert code == 2
    line = f"put `--` before the command: ddpctl launch hosts.yaml {better}"
    assert err == f"ddpctl: error: {line}\n"


def test_a_wrong_flag_before_the_script_is_named(fake_cluster: Make) -> None:
    code, _, err = fake_cluster().ddpctl("launch", "hosts.yaml", "--steps", "5", "train.py")
    assert (code, "No such option: --steps" in err) == (2, True), err


def test_an_empty_hosts_argument_is_the_hosts_file_here(fake_cluster: Make) -> None:
    code, _, err = fake_cluster().ddpctl("launch", "", "--dry-run")
    assert code == 0, err


def test_our_flags_after_a_script_stay_ours(fake_cluster: Make) -> None:
    flags = ["hosts.yaml", "train", "-qv", "--env=A=1", "--dry-run", "--master_port", "5000"]
    code, out, err = fake_cluster().ddpctl("launch", *flags)
    assert (code, "5000" in out) == (0, True), err


@pytest.mark.parametrize("flag", [["--dataset", "other"], ["--dataset=other"]])
def test_push_takes_the_folder_of_dataset_as_launch_does(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flag: list[str]
) -> None:
    cluster = fake_cluster(dataset="missing")
    (cluster.folder / "other").mkdir()
    pushed = []

    def note(nodes, cluster, *, parts, **how):  # type: ignore[no-untyped-def]
        pushed.append((cluster.job.dataset, parts))
        raise PushFailed("enough")

    monkeypatch.setattr(push, "push", note)
    cluster.ddpctl("push", "hosts.yaml", *flag)
    assert pushed == [(str(cluster.folder / "other"), {"dataset"})]


def test_push_takes_dataset_as_the_last_word(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def note(nodes, cluster, *, parts, **how):  # type: ignore[no-untyped-def]
        raise PushFailed(f"only {parts}")

    monkeypatch.setattr(push, "push", note)
    code, _, err = fake_cluster().ddpctl("push", "hosts.yaml", "--dataset")
    assert (code, "only {'dataset'}" in err) == (5, True), err


def test_a_hosts_file_after_dataset_is_no_folder(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    code, _, err = cluster.ddpctl("push", "--dataset", "nowhere.yaml")
    assert (code, "nowhere.yaml: cannot be read" in err) == (2, True)


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        ([], {"image", "dataset", "workdir"}),
        (["--image"], {"image"}),
        (["--image", "--workdir"], {"image", "workdir"}),
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
