from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from push_machines import Machines

from launcher.errors import Several
from launcher.hosts import Cluster, Host, Job, override_job, parse
from launcher.push import sender
from launcher.push.files import left_out
from launcher.push.files.left_out import REPORT, LeftOut, ignore_files, listed
from launcher.push.files.scan import Tree, scan, scan_job
from launcher.push.push import PushResult, trees_of
from launcher.push.push_progress import PushProgress
from launcher.report.page import HEAD
from launcher.start.fill_node_folders import PREPARE
from launcher.terminal.console import Console

Pushes = Callable[..., PushResult]


def write(folder: Path, files: Iterable[str], text: str = "x") -> None:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def names(tree: Tree) -> set[str]:
    return {entry.path.decode() for entry in tree.manifest.entries if entry.is_file}


def code(folder: Path) -> set[str]:
    return names(scan(str(folder), code_only=True))


@pytest.mark.parametrize(("pipes", "said"), [("a", "skipped a:"), ("abc", " and 2 more:")])
def test_what_is_no_file_is_named_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], pipes: str, said: str
) -> None:
    (tmp_path / "train.py").touch()
    for name in pipes:
        os.mkfifo(tmp_path / name)
    cluster = Cluster((Host("a"),), Job(workdir=str(tmp_path)))
    trees_of(cluster, [], {"workdir"}, PushProgress([], Console()))
    [line] = capfd.readouterr().err.splitlines()
    assert f"{said} only files, folders and links are pushed" in line


@pytest.mark.parametrize(
    "line",
    [
        *("-----BEGIN OPENSSH PRIVATE KEY-----", "-----BEGIN RSA PRIVATE KEY-----"),
        *("-----BEGIN PRIVATE KEY-----", "-----BEGIN ENCRYPTED PRIVATE KEY-----"),
        *("-----BEGIN PGP PRIVATE KEY BLOCK-----", "PuTTY-User-Key-File-3: ssh-ed25519"),
        '{\n  "type": "service_account",',
    ],
)
def test_a_private_key_stays_here_whatever_its_name_is(tmp_path: Path, line: str) -> None:
    write(tmp_path, ["mykey", "notes/other.txt", "kept.txt"], f"{line}\nb3Blbn\n")
    write(tmp_path, ["train.py"], f'KEY = "{line}"\n')
    write(tmp_path, [".ddpctlignore"], "!kept.txt\n")
    assert code(tmp_path) == {".ddpctlignore", "kept.txt", "train.py"}


def test_ignore_files_that_take_long_to_match_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To leave out only some of what they name could push a secret."""
    monkeypatch.setattr(left_out, "MOST_PATTERNS", 10)
    few = "# a comment\n\n" * 20 + "a*\n" * 6
    write(tmp_path, [".gitignore", "one/.gitignore", "train.py"], few)
    link = tmp_path / "one" / "out"
    link.symlink_to("/etc")
    with pytest.raises(
        Several, match=r"/one/.gitignore: more than 10 patterns apply to one folder"
    ) as raised:
        code(tmp_path)
    assert str(link) not in str(raised.value)  # nothing else in the folder was looked at
    link.unlink()
    write(tmp_path, [".gitignore"], "a*\n" * 4)
    write(tmp_path, ["two/.gitignore"], few)
    assert code(tmp_path) == {".gitignore", "one/.gitignore", "two/.gitignore", "train.py"}


def test_a_workdir_leaves_out_git_and_what_the_ignore_files_say(tmp_path: Path) -> None:
    files = {
        ".gitignore": "*.log\n/build/\n!keep.log\nvenv\n",
        ".ddpctlignore": "big.bin\n",
        ".git/config": "",
        "train.py": "",
        "a.log": "",
        "keep.log": "",
        "build/x": "",
        "src/build/x": "",
        "src/.gitignore": "!a.log\n",
        "src/a.log": "",
        "venv/keep.log": "",
        "big.bin": "",
        "src/.git": "gitdir: elsewhere",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert code(tmp_path) == {
        ".gitignore",
        ".ddpctlignore",
        "train.py",
        "keep.log",
        "src/build/x",
        "src/.gitignore",
        "src/a.log",
    }


@pytest.mark.parametrize(
    "name",
    [
        ".env",
        ".env.local",
        "prod.env",
        "deploy/.envrc",
        "id_ed25519",
        "keys/id_lab",
        "server.pem",
        "tls.key",
        ".ssh/config",
        ".netrc",
        ".git/config",
        "third/.git",
        ".venv/bin/python",
        "venv/bin/python",
        "node_modules/x/index.js",
        "src/__pycache__/train.cpython-311.pyc",
        ".mypy_cache/3.11/x.json",
        ".cache/huggingface/x",
        "epoch1.pt",
        "model/last.ckpt",
        "checkpoints/any",
        "checkpoint-500/trainer_state.json",
        "wandb/run/x",
    ],
)
def test_secrets_environments_caches_and_checkpoints_are_not_code(
    tmp_path: Path, name: str
) -> None:
    write(tmp_path, [name, "train.py"])
    assert code(tmp_path) == {"train.py"}
    assert scan(str(tmp_path), code_only=False).manifest.files == 2


@pytest.mark.parametrize(
    "name",
    ["id_map.py", "id_to_label.json", "checkpoints/__init__.py", "envs/gym.py", "id_utils/a.py"],
)
def test_code_with_a_similar_name_is_pushed(tmp_path: Path, name: str) -> None:
    write(tmp_path, [name])
    assert name in code(tmp_path)


@pytest.mark.parametrize("marks", ["pyvenv.cfg", "conda-meta/history", "CACHEDIR.TAG"])
def test_an_environment_or_cache_of_any_name_is_left_out(tmp_path: Path, marks: str) -> None:
    write(tmp_path, [f"mine/{marks}", "mine/lib/x.py", "train.py"])
    (tmp_path / "mine/python").symlink_to("/usr/bin/python3")
    assert code(tmp_path) == {"train.py"}


def test_ddpctls_own_files_are_left_out(tmp_path: Path) -> None:
    run = tmp_path / "20261123-run"
    write(run, ["run.json", "hosts.yaml", "logs/node-0.log", "checkpoints/epoch1"])
    (tmp_path / "20261123-run.html").write_text(f"<html><head>{REPORT}")
    (tmp_path / "hosts.yaml").write_text("hosts: [a]\njob:\n  env: {TOKEN: secret}\n")
    (tmp_path / "conf.yaml").write_text("hosts: [a]\n")
    (tmp_path / "page.html").write_text("<html>")
    os.mkfifo(tmp_path / "pipe.yaml")
    assert code(tmp_path) == {"conf.yaml", "page.html"}


def test_a_report_says_that_it_is_one() -> None:
    assert REPORT in HEAD


def test_ddpctlignore_keeps_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path, ["a.pem", "b.pem", ".venv/x.py", "weights/w.pt", "weights/.env", "train.py"])
    lines = ["!*/", "!*", "!weights/", "!a.pem", "!weights/*.pt"]
    (tmp_path / ".ddpctlignore").write_text("\n".join(lines))
    assert code(tmp_path) == {".ddpctlignore", "a.pem", "weights/w.pt", "train.py"}
    (tmp_path / ".ddpctlignore").rename(tmp_path / ".gitignore")
    assert code(tmp_path) == {".gitignore", "train.py"}


HOSTS_FILE = """
defaults: {identity_file: lab-login}
hosts: [a]
job: {workdir: ., dataset: ./data, env_file: secrets.env, mounts: ["%s/scratch:/scratch"]}
"""


def project(folder: Path) -> Cluster:
    """The layout of the README: data, secrets and code in one folder."""
    write(folder, ["train.py", "data/0.bin", "scratch/1.bin", "lab-login"])
    write(folder, ["secrets.env"], "TOKEN=secret\n")
    return parse(HOSTS_FILE % folder, str(folder / "hosts.yaml"))


def test_what_the_hosts_file_names_as_private_or_as_data_is_left_out(tmp_path: Path) -> None:
    cluster = project(tmp_path)
    write(tmp_path, ["other/x.py"])
    os.link(tmp_path / "secrets.env", tmp_path / "other" / "same.txt")
    tree = scan_job(cluster, {"workdir"})["workdir"]
    assert names(tree) == {"train.py", "other/x.py"}
    assert {each.path for each in tree.left_out} == {
        "data",
        "scratch",
        "secrets.env",
        "lab-login",
        "other/same.txt",
    }


def test_a_dataset_and_a_secret_that_the_command_line_replaces_are_left_out(tmp_path: Path) -> None:
    cluster = project(tmp_path)
    write(tmp_path, ["mine/0.bin"])
    (tmp_path / "token").write_text("TOKEN=other")
    (tmp_path / "secrets.env").rename(tmp_path / "tokens")
    job = replace(cluster.job, env_file=str(tmp_path / "tokens"))
    given = {"dataset": str(tmp_path / "mine"), "env_file": str(tmp_path / "token")}
    cluster = override_job(replace(cluster, job=job), given)
    assert names(scan_job(cluster, {"workdir"})["workdir"]) == {"train.py"}


def test_data_and_secrets_behind_links_are_left_out_and_no_error(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    project(elsewhere)
    folder.mkdir()
    write(folder, ["train.py"])
    for name in ("data", "secrets.env", "lab-login"):
        (folder / name).symlink_to(elsewhere / name)
    (folder / "same").symlink_to(elsewhere / "data")
    cluster = parse(HOSTS_FILE % folder, str(folder / "hosts.yaml"))
    assert names(scan_job(cluster, {"workdir"})["workdir"]) == {"train.py"}


def test_a_dataset_leaves_out_the_secrets_and_nothing_else(tmp_path: Path) -> None:
    project(tmp_path)
    write(tmp_path, [".venv/x", "0.pt"])
    job = Job(dataset=str(tmp_path), env_file=str(tmp_path / "secrets.env"))
    host = Host("a", identity_file=str(tmp_path / "lab-login"))
    tree = scan_job(Cluster((host,), job), {"dataset"})["dataset"]
    assert names(tree) == {"train.py", "data/0.bin", "scratch/1.bin", ".venv/x", "0.pt"}


def test_an_unreadable_folder_matters_only_if_it_would_be_pushed(tmp_path: Path) -> None:
    loop = tmp_path / "cache"
    loop.mkdir()
    (tmp_path / ".gitignore").write_text("cache/\n")
    with pytest.MonkeyPatch.context() as patch:
        scandir = os.scandir

        def refuse(path: bytes) -> object:
            if os.path.basename(path) == b"cache":  # noqa: PTH119
                raise PermissionError(13, "Permission denied")
            return scandir(path)

        patch.setattr("launcher.push.files.scan.os.scandir", refuse)
        assert code(tmp_path) == {".gitignore"}


def test_the_message_lists_the_largest_first() -> None:
    cache = LeftOut("src/__pycache__", 1_000_000)
    small = [LeftOut(f"{name}.pt", 1) for name in "abcdefgh"]
    big = LeftOut("data", 2 * 10**9, at_least=True)
    assert listed([*small, cache, big]).split(", ") == [
        "data (over 2.0 GB)",
        "src/__pycache__ (1.0 MB)",
        *(f"{name}.pt (1 byte)" for name in "abcdef"),
        "2 more (2 bytes)",
    ]


def test_what_makes_the_workdir_large_is_named(
    machines: Machines, pushes: Pushes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "LARGE", 1_000_000)
    code = tmp_path / "code"
    (code / "images").mkdir(parents=True)
    for name, size in {"images/1": 600_000, "images/2": 600_000, "a.bin": 900_000}.items():
        (code / name).write_bytes(bytes(size))
    done = pushes(machines(1), workdir=str(code))
    assert done.report.notices == [
        "large items in the workdir: images (1.2 MB); each run gets a copy on every host, so move data to "
        "job.dataset, or name it in .ddpctlignore"
    ]


def test_no_secret_reaches_a_host_and_the_data_lies_there_once_after_three_runs(
    machines: Machines, pushes: Pushes, tmp_path: Path
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    job = project(folder).job
    (folder / "data/0.bin").write_bytes(os.urandom(4_000_000))
    (machine,) = machines(1)
    done = pushes([machine], dataset=job.dataset, workdir=job.workdir, env_file=job.env_file)
    assert (
        "left out of the workdir: data (4.0 MB), secrets.env (13 bytes)" in done.report.notices[0]
    )
    store = machine.home / ".ddpctl"
    for run in "abc":
        runs = f"{machine.home}/.ddpctl/runs/{run}"
        digest = str(done.report.workdir_digest)
        made = machine.connection.script(
            PREPARE, runs, f"{runs}/nodes/0/attempt-1", digest, "", stdin=bytes(10240)
        )
        assert made.code == 0, made.reason
        assert (store / "runs" / run / "workspace" / "train.py").read_text() == "x"
    used = subprocess.run(["du", "-s", "-B1", store], capture_output=True, text=True, check=True)
    assert int(used.stdout.split()[0]) < 5_000_000
    assert subprocess.run(["grep", "-r", "TOKEN=secret", store], check=False).returncode == 1


def test_a_run_cannot_change_the_code_of_others_and_shares_its_blocks(
    machines: Machines, pushes: Pushes, tmp_path: Path
) -> None:
    """On XFS, which can share blocks."""
    image = tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(400 << 20)
    (machine,) = machines(1)
    commands = [["mkfs.xfs", "-q", image], ["mount", "-o", "loop", image, machine.home]]
    try:
        for command in commands:
            subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("cannot mount an XFS file system here")
    try:
        folder = tmp_path / "project"
        write(folder, ["train.py"])
        (folder / "table.bin").write_bytes(os.urandom(30_000_000))
        done = pushes([machine], workdir=str(folder))
        before = os.statvfs(machine.home).f_bfree
        for run in "abc":
            runs = f"{machine.home}/.ddpctl/runs/{run}"
            script = [runs, f"{runs}/nodes/0/attempt-1", str(done.report.workdir_digest), ""]
            assert machine.connection.script(PREPARE, *script, stdin=bytes(10240)).code == 0
        blocks = os.statvfs(machine.home)
        assert (before - blocks.f_bfree) * blocks.f_frsize < 5_000_000
        copy = machine.home / ".ddpctl/runs/a/workspace/train.py"
        copy.write_text("changed")
        assert (machine.trees("workdirs")[0] / "train.py").read_text() == "x"
    finally:
        subprocess.run(["umount", "-l", machine.home], check=True)


def test_an_ignore_file_that_is_no_regular_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / ".ddpctlignore")
    assert list(ignore_files(os.fsencode(tmp_path), b"", ())) == []
