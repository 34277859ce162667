"""The script is looked for and compiled before a host is contacted."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import FakeCluster

from launcher.errors import UsageError
from launcher.hosts import Job
from launcher.start.check_command import check_command


def job(folder: Path, *command: str) -> Job:
    return Job(workdir=str(folder), command=command)


def test_a_misspelt_script_is_named_with_the_one_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    with pytest.raises(UsageError) as caught:
        check_command(job(tmp_path, "trian.py"))
    assert str(caught.value) == (
        f"job.command names trian.py, which is not in {tmp_path}; did you mean train.py?"
    )


def test_a_script_in_a_subfolder_is_suggested(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").touch()
    with pytest.raises(UsageError, match=r"did you mean src/train\.py\?"):
        check_command(job(tmp_path, "train.py"))


def test_a_script_above_the_workdir_is_not_sent(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "train.py").touch()
    for script in ("../train.py", "x/../../train.py"):
        with pytest.raises(UsageError, match=rf"names {script}, which is not in {tmp_path}/code;"):
            check_command(job(tmp_path / "code", script))
    check_command(job(tmp_path, "code/../train.py"))


def test_a_syntax_error_is_one_line_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nfor x in range(3)\n    pass\n")
    with pytest.raises(UsageError) as caught:
        check_command(job(tmp_path, "train.py"))
    assert str(caught.value).startswith(f"{tmp_path}/train.py:2: expected ':'")
    assert "\n" not in str(caught.value)
    python = "{}.{}".format(*sys.version_info)  # that of the image may be newer
    assert caught.value.remedy.endswith(f"newer than {python}, launch with --no-check")


@pytest.mark.parametrize("command", ["-m", "--no-python", "/opt/image/train.py"])
def test_a_command_that_may_be_in_the_image_is_not_looked_for(tmp_path: Path, command: str) -> None:
    check_command(job(tmp_path, command, "trainer"))


def test_the_path_that_a_script_has_only_on_this_machine_is_mentioned(tmp_path: Path) -> None:
    script = tmp_path / "src" / "train.py"
    script.parent.mkdir()
    script.touch()
    own = job(tmp_path, str(script))
    assert str(check_command(own)).endswith("it is /workspace/src/train.py: write src/train.py")
    assert check_command(replace(own, engine="process")) is None
    assert check_command(replace(own, mounts=(f"{tmp_path}:{tmp_path}:ro",))) is None
    assert check_command(job(tmp_path, f"{tmp_path}/none.py")) is None
    assert check_command(job(tmp_path, f"{tmp_path}/{'9' * 5000}")) is None
    assert check_command(Job(command=(str(script),))) is None


@pytest.mark.parametrize(
    ("word", "there"),
    [
        ("data", "/data"),
        ("./data/", "/data"),
        ("--data=data/a.csv", "/data/a.csv"),
        ("HERE/data", "/data"),
        ("data/missing", None),
        ("/data", None),
        ("--data=", None),
        ("a" * 5000, None),
        ("conf.yaml", None),
    ],
)
def test_the_path_that_the_dataset_has_only_on_this_machine_is_mentioned(
    tmp_path: Path, word: str, there: str | None
) -> None:
    (tmp_path / "data").mkdir()
    for name in ("train.py", "conf.yaml", "data/a.csv"):
        (tmp_path / name).touch()
    command = ("train.py", word.replace("HERE", str(tmp_path)))
    given = replace(job(tmp_path, *command), dataset=str(tmp_path / "data"))
    hint = check_command(given)
    assert (hint or "").endswith(f"in the container, it is {there}: write {there}" if there else "")
    assert bool(hint) == bool(there)
    processes = check_command(replace(given, engine="process"))
    assert ("DDPCTL_DATA_DIR" in (processes or "")) == bool(there)
    assert check_command(replace(given, dataset=str(tmp_path))) is None  # the code is data, too


def test_a_valid_script_with_a_warning_passes_in_silence(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    (tmp_path / "train.py").write_text("x = '\\d'\nassert (x, 'always true')\n")
    check_command(job(tmp_path, "train.py", "--epochs", "3"))
    assert not recwarn.list


@pytest.mark.parametrize("words", [["launch"], ["launch", "--dry-run"], ["check"]])
def test_a_command_that_cannot_work_is_refused_before_a_host_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").touch()
    cluster = FakeCluster(tmp_path, monkeypatch, ["gpu0"], workdir="code", command=["trian.py"])
    code, _, err = cluster.ddpctl(*words, cluster.hosts_file)
    assert (code, "did you mean train.py?" in err) == (2, True)
    assert not cluster.hosts["gpu0"].asked


def test_a_script_that_git_ignores_is_not_pushed_and_needs_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "code"
    (code / "scratch").mkdir(parents=True)
    (code / "scratch" / "train.py").touch()
    (code / ".gitignore").write_text("scratch/\n")
    cluster = FakeCluster(
        tmp_path, monkeypatch, ["gpu0"], workdir="code", command=["scratch/train.py"]
    )
    flags = ("launch", cluster.hosts_file, "--no-check")
    for _ in range(2):  # when the rest of the workdir is there already, too
        returned, _, err = cluster.ddpctl(*flags)
        assert returned == 2 and not cluster.nodes
        assert (
            "names scratch/train.py, but scratch is left out of the workdir; write `!scratch`"
            in err
        )
    (code / ".ddpctlignore").write_text("!scratch\n")
    returned, _, err = cluster.ddpctl(*flags, "--detach")
    assert returned == 0, err


def test_a_missing_workdir_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster(tmp_path, monkeypatch, ["gpu0"], workdir="cod")
    code, _, err = cluster.ddpctl("launch", cluster.hosts_file)
    assert (code, "/cod, which does not exist on this machine; correct" in err) == (2, True), err
    assert not cluster.hosts["gpu0"].asked


def test_a_script_that_is_not_sent_for_lack_of_a_workdir_is_mentioned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert check_command(Job(command=("train.py",))) is None  # of the image
    (tmp_path / "train.py").touch()
    assert "set `workdir: .` to send it" in str(check_command(Job(command=("train.py",))))


def test_the_dry_run_mentions_a_script_that_is_not_sent(
    fake_cluster: Callable[..., FakeCluster],
) -> None:
    cluster = fake_cluster()
    (cluster.folder / "train.py").touch()
    code, out, err = cluster.ddpctl("launch", cluster.hosts_file, "--dry-run", "--json")
    assert code == 0 and "set `workdir: .` to send it" in err
    assert json.loads(out)
