"""`ddpctl init`: the hosts file that it writes reads back to what it was given."""

from __future__ import annotations

import importlib
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes import FakeCluster, ddpctl
from host_facts import facts
from hypothesis import assume, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from launcher.cli import application
from launcher.errors import HostsFileError, UsageError
from launcher.facts.facts import Facts
from launcher.facts.facts import parse as parse_facts
from launcher.facts.gpus import Gpu
from launcher.hosts import Host, load, parse
from launcher.hosts.init import compose, scalar, ssh_aliases
from launcher.preflight.first_look import described, look
from launcher.ssh.host_connection import HostConnection
from launcher.terminal.console import Console

ROOT = str(Path(__file__).parents[3])
WORDS = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1)


def run(folder: Path, *argv: str, code: int = 0) -> str:
    with pytest.MonkeyPatch.context() as patch, Path(os.devnull).open() as nothing:
        patch.chdir(folder)
        patch.setenv("HOME", str(folder))
        patch.setattr(sys, "stdin", nothing)
        returned, _, said = ddpctl("init", *argv)
    assert returned == code, said
    assert "Traceback" not in said
    return said


def test_an_account_without_a_home_folder_can_name_its_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    path = tmp_path / "hosts.yaml"
    assert CliRunner().invoke(application(), ["init", str(path), "-H", "a"]).exit_code == 0
    assert [host.name for host in load(path).hosts] == ["a"]
    (tmp_path / "config").write_text("Include ~nobody-here/x /\nHost b\n")
    assert ssh_aliases(tmp_path / "config") == ["b"]


@given(st.lists(WORDS, min_size=1, max_size=5))
def test_any_command_reads_back(words: list[str]) -> None:
    assume(words[0].isprintable() and not words[0].endswith(("sh", "run", "speed", "celerate")))
    assume("python" not in words[0])  # these are refused with a remedy
    text = compose([Host("a")], {"command": words}, "hosts.yaml")
    assert parse(text, "hosts.yaml").job.command == tuple(words)


@given(st.text("yneofr0123.~-:/@# 'ü", min_size=1, max_size=6))
def test_a_scalar_reads_back_as_text(text: str) -> None:
    import yaml

    assert yaml.safe_load(f"key: {scalar(text)}  # comment") == {"key": text}


def test_flags_make_a_file_that_check_accepts_and_nothing_is_overwritten(tmp_path: Path) -> None:
    flags = ["-H", "me@gpu1:2222", "-H", "local", "--user", "ubuntu", "--image", "mine:1"]
    run(tmp_path, *flags, "--command", "train.py --name 'two words'")
    cluster = load(tmp_path / "hosts.yaml")
    assert [(h.user, h.host, h.port) for h in cluster.hosts] == [
        ("me", "gpu1", 2222),
        (None, "local", None),
    ]
    assert cluster.job.image == "mine:1"
    assert cluster.job.command == ("train.py", "--name", "two words")
    assert cluster.job.workdir == str(tmp_path)
    before = (tmp_path / "hosts.yaml").read_text()
    assert "already exists; pass --force" in run(tmp_path, "-H", "b", code=2)
    assert (tmp_path / "hosts.yaml").read_text() == before
    run(tmp_path, "-H", "b", "--force")
    assert [host.host for host in load(tmp_path / "hosts.yaml").hosts] == ["b"]


def test_paths_on_the_command_line_are_relative_to_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "lab").mkdir()
    paths = ["--dataset", "data", "--identity-file", "~/key"]
    run(tmp_path, "lab/hosts.yaml", "-H", "a", "--command", "train.py", *paths)
    (tmp_path / "data").mkdir()
    cluster = parse((tmp_path / "lab/hosts.yaml").read_text(), str(tmp_path / "lab/hosts.yaml"))
    assert (cluster.job.workdir, cluster.job.dataset) == (str(tmp_path), str(tmp_path / "data"))
    assert cluster.hosts[0].identity_file == str(Path("~/key").expanduser())


def test_a_relative_path_needs_a_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(UsageError, match="the current folder no longer exists"):
        compose([Host("a")], {"dataset": "data"}, str(tmp_path / "hosts.yaml"))


def test_hosts_of_a_hostfile_keep_their_gpus(tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text("gpu1 slots=8  # the large one\ngpu2 slots=4\n")
    run(tmp_path, "lab.yaml", "--from", "hostfile")
    cluster = load(tmp_path / "lab.yaml")
    assert [(host.host, host.gpus) for host in cluster.hosts] == [("gpu1", 8), ("gpu2", 4)]


INVENTORIES = {
    "inventory.ini": """\
[gpus]
gpu[01:02].lab ansible_user=ann  # the large ones
small ansible_host=10.0.0.9
[gpus:vars]
ansible_port=2222
""",
    "inventory.yaml": """\
all:
  children:
    gpus:
      vars: {ansible_port: 2222}
      hosts:
        "gpu[01:02].lab": {ansible_user: ann}
        small: {ansible_host: 10.0.0.9}
""",
    "fleet.dstack.yml": """\
type: fleet
name: lab
ssh_config:
  port: 2222
  hosts: [{hostname: gpu01.lab, user: ann}, {hostname: gpu02.lab, user: ann}, 10.0.0.9]
""",
    "ssh_node_pools.yaml": """\
lab:
  port: 2222
  hosts: [{ip: gpu01.lab, user: ann}, {ip: gpu02.lab, user: ann}, 10.0.0.9]
""",
}


@pytest.mark.parametrize("name", INVENTORIES)
def test_files_of_other_tools_are_recognized_and_converted(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(INVENTORIES[name])
    with pytest.raises(HostsFileError, match=rf"`ddpctl init --from .*{name}`"):
        load(tmp_path / name)
    assert (
        CliRunner()
        .invoke(
            application(), ["init", str(tmp_path / "made.yaml"), "--from", str(tmp_path / name)]
        )
        .exit_code
        == 0
    )
    assert [(h.host, h.user, h.port) for h in load(tmp_path / "made.yaml").hosts] == [
        ("gpu01.lab", "ann", 2222),
        ("gpu02.lab", "ann", 2222),
        ("10.0.0.9", None, 2222),
    ]


GROUPED = {
    "ini": """\
small  # before any section
[all]
gpu1 ansible_host=10.0.0.1 ansible_user=root
gpu2 ansible_host=10.0.0.2
[hosts]
gpu1
gpu2
[lab:children]
hosts
[site:children]
lab
[site:vars]
ansible_user=ann
[all:vars]
ansible_port=2222
""",
    "yaml": """\
all:
  hosts:
    small:
    gpu1: {ansible_host: 10.0.0.1, ansible_user: root}
    gpu2: {ansible_host: 10.0.0.2}
  vars: {ansible_port: 2222}
  children:
    site:
      vars: {ansible_user: ann}
      children: {lab: {children: {hosts: {hosts: {gpu1: , gpu2: }}}}}
""",
}


@pytest.mark.parametrize("form", GROUPED)
def test_a_host_in_several_groups_of_an_inventory_is_one_host(tmp_path: Path, form: str) -> None:
    """Its own variables come first, then those of its groups, then those of `all`."""
    (tmp_path / "inventory").write_text(GROUPED[form])
    run(tmp_path, "--from", "inventory")
    assert [(h.host, h.user, h.port) for h in load(tmp_path / "hosts.yaml").hosts] == [
        ("small", None, 2222),
        ("10.0.0.1", "root", 2222),
        ("10.0.0.2", "ann", 2222),
    ]


def test_a_host_of_an_inventory_may_have_its_port_in_its_name(tmp_path: Path) -> None:
    lines = ("gpu1:2201 ansible_user=ann", "node[01:02].lab:2202", "fd00::1", "[later]", "gpu1")
    (tmp_path / "inventory").write_text(
        "\n".join(["[all:vars]", "ansible_port=22", "[gpu]", *lines])
    )
    run(tmp_path, "--from", "inventory")
    assert [(h.host, h.user, h.port) for h in load(tmp_path / "hosts.yaml").hosts] == [
        ("gpu1", "ann", 2201),
        ("node01.lab", None, 2202),
        ("node02.lab", None, 2202),
        ("fd00::1", None, 22),
    ]


@pytest.mark.parametrize(
    "args",
    ["-J ann@bastion:22", "-o ProxyJump=ann@bastion:22 -C", '-C -o "ProxyJump ann@bastion:22"'],
)
def test_the_jump_host_of_an_inventory_is_kept(tmp_path: Path, args: str) -> None:
    lines = ("[gpu]", "gpu1", "[gpu:vars]", f"ansible_ssh_common_args='{args}'")
    (tmp_path / "inventory").write_text("\n".join(lines))
    run(tmp_path, "--from", "inventory")
    [host] = load(tmp_path / "hosts.yaml").hosts
    assert (host.host, host.proxy_jump) == ("gpu1", "ann@bastion:22")


def test_the_file_is_utf_8_whatever_the_locale_is(tmp_path: Path) -> None:
    (tmp_path / "inventory").write_text("[gpus]\na ansible_user=jürgen\n", encoding="utf-8")
    env = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": ROOT}
    argv = [sys.executable, "-X", "utf8=0", "-m", "launcher", "init", "--from", "inventory"]
    subprocess.run(argv, cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, check=True)
    assert load(tmp_path / "hosts.yaml").hosts == (Host("a", user="jürgen"),)


def test_every_commented_key_can_be_uncommented() -> None:
    text = compose([Host("a")], {}, "hosts.yaml")
    commented = [line for line in text.splitlines() if line.startswith("  # ")]
    assert len(commented) > 5
    uncommented = re.sub(r"^  # ", "  ", text, flags=re.MULTILINE)
    assert parse(uncommented, "hosts.yaml").hosts[1].internal_ip == "10.0.0.2"


def test_hosts_of_the_ssh_config_by_pattern(tmp_path: Path) -> None:
    (tmp_path / ".ssh" / "more").mkdir(parents=True)
    config = tmp_path / ".ssh" / "config"
    config.write_text("Include more/*\nHost *\n  User x\nHost\tgpu3 !gpu4 bastion # 3\n  Port 3\n")
    (tmp_path / ".ssh" / "more" / "a").write_text("host=gpu1\nHost gpu2 gpu?\nInclude config\n")
    assert ssh_aliases(config) == ["gpu1", "gpu2", "gpu3", "bastion"]
    run(tmp_path, "--ssh-config", "gpu*")
    assert sorted(h.host for h in load(tmp_path / "hosts.yaml").hosts) == ["gpu1", "gpu2", "gpu3"]
    assert "no Host in" in run(tmp_path, "b.yaml", "--ssh-config", "tpu*", code=2)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "no hosts given; pass -H"),
        (["-H", "a", "--command", "'"], "correct the quotes"),
        (["-H", "a b"], "hosts"),
        (["no/such/folder.yaml", "-H", "a"], "cannot be written"),
    ],
)
def test_wrong_answers_are_reported_in_one_line(
    tmp_path: Path, argv: list[str], message: str
) -> None:
    assert message in run(tmp_path, *argv, code=2)
    assert not (tmp_path / "hosts.yaml").exists()


def answer_on_a_terminal(folder: Path, *lines: str) -> str:
    """Run `ddpctl init` on a pseudo terminal, type one line per question, return what it printed."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "launcher", "init"],
        cwd=folder,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "HOME": str(folder), "PYTHONPATH": ROOT},
        start_new_session=True,
    )
    os.close(follower)
    os.write(leader, "".join(f"{line}\n" for line in lines).encode())
    output = b""
    try:
        while data := os.read(leader, 4096):
            output += data
    except OSError:  # the other side has gone
        pass
    assert process.wait(timeout=60) == 0, output
    return output.decode()


def test_on_a_terminal_it_asks_you_and_the_hosts(tmp_path: Path) -> None:
    """gpu1 cannot be reached; this machine can, and has no GPU."""
    (tmp_path / ".ssh").mkdir()
    (tmp_path / "train.py").touch()
    (tmp_path / ".ssh" / "config").write_text(
        "Host gpu1\n  HostName 127.0.0.1\n  Port 1\n  User ann\n  IdentityFile ~/.ssh/lab\n"
    )
    for key in ("lab", "mine"):
        (tmp_path / ".ssh" / key).touch()
    printed = answer_on_a_terminal(
        tmp_path, "gpu1, local", "", ".ssh/mine", "4", "mine:2", ".", "", "trian.py", "train.py"
    )
    for question in (
        "SSH user [ann]:",
        f"SSH key [{tmp_path}/.ssh/lab]:",
        "GPUs per host [0]:",
        "Command for torchrun [train.py]:",
    ):
        assert question in printed
    assert "ddpctl: gpu1: " in printed
    assert "did you mean train.py?" in printed
    assert "local: no GPU, " in printed
    text = (tmp_path / "hosts.yaml").read_text()
    assert "GPUs unknown; `ddpctl check` shows why" in text
    cluster = load(tmp_path / "hosts.yaml")
    assert [(h.host, h.user, h.gpus) for h in cluster.hosts] == [
        ("gpu1", None, 4),
        ("local", None, 0),
    ]
    assert cluster.hosts[0].identity_file == str(tmp_path / ".ssh/mine")
    assert (cluster.job.image, cluster.job.command) == ("mine:2", ("train.py",))
    assert cluster.job.workdir == str(tmp_path)


def test_an_answer_that_is_not_valid_is_asked_for_again(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    images, commands = ("Mine:1", "mine:1"), ("python train.py", "'", "train.py --lr '1 2'")
    printed = answer_on_a_terminal(
        tmp_path, "local", "4 GPUs", "0", *images, "s3://code", "", "none", *commands
    )
    for why in (
        "write all, a count",
        "in lower case",
        "URLs",
        "remove python",
        "closing quotation",
    ):
        assert why in printed
    job = load(tmp_path / "hosts.yaml").job
    assert (job.image, job.command) == ("mine:1", ("train.py", "--lr", "1 2"))
    assert (job.workdir, job.dataset) == (str(tmp_path), None)


@pytest.mark.parametrize("end", ["\n", "\x85", "\u2028", "\u2029", "\r"])
def test_what_a_host_says_of_its_gpus_stays_in_a_comment(end: str) -> None:
    lies = f"A100{end}  - evil.example.com"
    output = f"@@gpus\n0, GPU-1, {lies}, 1\n@@user\nuid=1(a) gid=1(a)\n@@home\n/h\n@@end\n1\n"
    note = described("a", parse_facts(output)).note
    text = compose([Host("a")], {}, "hosts.yaml", {"a": note})
    assert parse(text, "hosts.yaml") == parse(compose([Host("a")], {}, "hosts.yaml"), "hosts.yaml")


def test_a_host_whose_driver_is_broken_does_not_become_a_cpu_node(
    fake_cluster: Callable[..., FakeCluster], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = fake_cluster("gpu0", "gpu1")
    cluster.hosts["gpu0"].give_gpus(2)
    cluster.hosts["gpu1"].install(
        "nvidia-smi", "#!/bin/sh\necho Failed to initialize NVML: Driver/library version mismatch\n"
    )
    looks = look([Host("gpu0"), Host("gpu1")], Console())
    assert [one.gpus for one in looks] == [2, None]
    assert "gpu1: nvidia-smi fails: Failed to initialize NVML" in capsys.readouterr().err


def test_two_hosts_behind_one_name_are_looked_at_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As rented machines are: root@ssh1.example:10001 and root@ssh1.example:10002."""

    def answer(connection: HostConnection, check: object) -> Facts:
        assert connection.host.port != 3, "no answer"
        return facts(gpus=(Gpu(0, "GPU-1", "A100", 1),) * (connection.host.port or 0))

    monkeypatch.setattr("launcher.preflight.first_look.gather_one", answer)
    looks = look([Host("a", port=port) for port in (1, 2, 3)], Console(quiet=True))
    assert [(one.host, one.gpus) for one in looks] == [("a", 1), ("a", 2), ("a", None)]


def test_a_login_with_keys_of_its_own_is_written_as_keys() -> None:
    hosts = [Host("me@gpu1:2222", gpus=0), Host("[fd00::1]:2222", gpus=0), Host("fd00::2", gpus=0)]
    text = compose([*hosts, Host("me@gpu2")], {"gpus": "all"}, "hosts.yaml", {hosts[0].host: "CPU"})
    assert (
        "  - host: gpu1                 # CPU\n    user: me\n    port: 2222\n    gpus: 0\n" in text
    )
    assert [(h.host, h.user, h.port, h.gpus) for h in parse(text, "hosts.yaml").hosts] == [
        ("gpu1", "me", 2222, 0),
        ("fd00::1", None, 2222, 0),
        ("fd00::2", None, None, 0),
        ("gpu2", "me", None, "all"),
    ]


def test_it_offers_an_image_of_the_packages_that_the_folder_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = importlib.import_module("launcher.commands.init")
    answers = iter(["mine:1", "build", "build", "mine:2"])
    asked: list[str] = []
    monkeypatch.setattr(command, "_prompt", lambda text, _: asked.append(text) or next(answers))
    monkeypatch.chdir(tmp_path)
    assert command._asked_image("x:1", Console()) == "mine:1"
    (tmp_path / "requirements.txt").write_text("timm\n")
    building = "launcher.push.image.build_image.build_image"
    monkeypatch.setattr(building, lambda recipe, console: "ddpctl-mine:0a")
    assert command._asked_image("x:1", Console()) == "ddpctl-mine:0a"
    (tmp_path / "requirements.txt").write_text("-e .\n")
    assert command._asked_image("x:1", Console()) == "mine:2"
    assert ["requirements.txt" in text for text in asked] == [False, True, True, False]
    assert "code belongs in job.workdir" in capsys.readouterr().err
