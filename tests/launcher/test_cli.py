"""The command line as a user meets it: order of commands, usage errors, dry runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from forked_ddpctl import forked_ddpctl
from local_machine import Machine

from launcher import cli
from launcher.errors import UsageError
from launcher.outcomes import Exit

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
ORDER = (
    "init check push launch resume kill ps logs attach fetch sanity stacks exec report clean"
).split()


@pytest.fixture
def ddpctl(tmp_path: Path):  # type: ignore[no-untyped-def]
    def run(*argv: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONPATH": str(ROOT)}
        line = [sys.executable, "-m", "launcher", *argv]
        done = subprocess.run(
            line,
            capture_output=True,
            text=True,
            env=env,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            preexec_fn=forked_ddpctl(line, env),
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


def test_help_shows_the_commands_in_the_contracts_order(ddpctl) -> None:  # type: ignore[no-untyped-def]
    shown = ddpctl("--help").stdout
    places = [shown.index(f"\n  {name} ") for name in ORDER]
    assert places == sorted(places)


LIMIT = """
import resource, sys
from launcher import cli
sys.argv = ["ddpctl", "--version"]
try:
    cli.main()
finally:
    print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_many_hosts_do_not_run_into_the_soft_limit_of_open_files() -> None:
    """A node that is followed takes three, and the usual soft limit is 1,024."""
    lowered = ["sh", "-c", 'ulimit -Sn 256; ulimit -Hn 4096; exec "$@"', "sh"]
    argv = [*lowered, sys.executable, "-c", LIMIT]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "(4096, 4096)", done.stderr


INTERRUPT = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == os.environ["AT"]:
            exec("signal.raise_signal(signal.SIGINT)\\nwhile True: pass")

sys.meta_path.insert(0, Interrupt())
"""


@pytest.mark.parametrize("imported", ["typer", "yaml"])
def test_ctrl_c_during_an_import_ends_a_command_with_130_and_a_line(
    imported: str, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPT)
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "AT": imported}
    argv = [sys.executable, "-m", "launcher", "check"]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path, env=env)
    assert (done.returncode, done.stderr) == (130, "ddpctl: error: interrupted\n")


def test_every_command_takes_quiet_and_verbose(ddpctl) -> None:  # type: ignore[no-untyped-def]
    for name in ORDER:
        shown = ddpctl(name, "--help").stdout
        assert "-q" in shown and "-v" in shown, name


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["launch", "--nope"], "--nope"),
        (["frobnicate"], "frobnicate"),
        (["launch"], "no hosts"),
        (["launch", "none.yaml"], "none.yaml: cannot be read"),
        (["launch", "-H", "a:1", "--name", "Bad Name"], "--name Bad Name: not a valid name"),
        (["launch", "-H", "a:1", "--env", "UNSET_HERE"], "--env UNSET_HERE"),
        (["logs"], "name the run's hosts file, as in `ddpctl attach hosts.yaml`"),
        (["attach", "zz"], "this machine has no record of run"),
        (["exec"], "no command; put it after `--`"),
        (["exec", "--all", "-i", "--", "ls"], "--all-nodes: several commands cannot share stdin"),
        (["exec", "--all", "--node", "1", "--", "ls"], "--node, --rank and --all-nodes"),
        (["exec", "-t", "--", "ls"], "-t: stdin is not a terminal"),
        (["exec", "--", "ls"], "no record of any run"),
        (["logs", "--grep", "("], "not a regular expression"),
        (["logs", "--since", "yesterday"], "--since yesterday: not a duration"),
        (["logs", "--tail", "99999999999999999999"], "--tail"),
        (["ps", "--watch", "--interval", "1e308"], "--interval"),
        (["sanity", "-H", "a,b", "--containers", "2"], "add --host with one of a,b"),
    ],
)
def test_usage_errors_exit_2_with_a_line(ddpctl, argv: list[str], said: str) -> None:  # type: ignore[no-untyped-def]
    assert said in ddpctl(*argv, code=2).stderr


@pytest.mark.parametrize("argv", [["kill", ""], ["exec", "", "--", "ls"]])
def test_an_empty_run_id_is_not_the_start_of_every_run_id(  # type: ignore[no-untyped-def]
    ddpctl, tmp_path: Path, argv: list[str]
) -> None:
    """As in `ddpctl kill "$RUN"` without a RUN: it stopped the only run without asking."""
    folder = tmp_path / "state" / "ddpctl" / "runs" / "20261121-153000-ab12"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    assert "this machine has no record of run ''" in ddpctl(*argv, code=2).stderr


def test_a_dry_run_prints_the_plan_and_contacts_nobody(ddpctl, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "hosts.yaml").write_text(
        "hosts: [nowhere.invalid, {host: other.invalid}]\njob: {master_port: 29500}\n"
    )
    done = ddpctl("launch", "hosts.yaml", "--dry-run", "--nproc_per_node", "2", "--", "t.py", "a b")
    assert (
        "torchrun --nnodes 2 --node-rank 0 --nproc-per-node 2 --master-addr nowhere.invalid "
        "--master-port 29500 --max-restarts 0 -- t.py 'a b'"
    ) in done.stdout
    assert not (tmp_path / "state").exists()


def test_a_dry_run_as_json_is_one_document(ddpctl) -> None:  # type: ignore[no-untyped-def]
    done = ddpctl("launch", "-H", "a:2,b:2", "--dry-run", "--json", "--", "t.py")
    document = json.loads(done.stdout)
    assert document["version"] == 1
    assert [node["host"] for node in document["nodes"]] == ["a", "b"]
    assert document["world_size"] == 4


def test_secrets_of_the_env_file_are_not_in_the_plan(ddpctl, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "s.env").write_text("TOKEN=s3cr3t\n")
    (tmp_path / "h.yaml").write_text("hosts: [a]\njob: {env_file: s.env}\n")
    for flags in ([], ["--json"]):
        assert "s3cr3t" not in ddpctl("launch", "h.yaml", "--dry-run", *flags).stdout


def test_everything_after_two_dashes_is_the_command(ddpctl) -> None:  # type: ignore[no-untyped-def]
    flags = ["launch", "-H", "a:2", "--dry-run", "--json", "--nproc_per_node=2"]
    plan = json.loads(ddpctl(*flags, "--", "--my_flag", "--", "x").stdout)
    assert plan["command"] == ["--my_flag", "--", "x"]


def test_a_command_alone_runs_on_the_hosts_of_hosts_yaml(ddpctl, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "hosts.yaml").write_text("hosts: [{host: a, gpus: 1}]\n")
    plan = json.loads(ddpctl("launch", "--dry-run", "--json", "--", "t.py", "x").stdout)
    assert (plan["command"], plan["nodes"][0]["host"]) == (["t.py", "x"], "a")


def test_other_commands_take_no_command(ddpctl) -> None:  # type: ignore[no-untyped-def]
    assert "junk" in ddpctl("ps", "hosts.yaml", "--", "junk", code=2).stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_is_that_of_the_named_shell(ddpctl, shell: str) -> None:  # type: ignore[no-untyped-def]
    assert f"_DDPCTL_COMPLETE=complete_{shell}" in ddpctl("--show-completion", shell).stdout


def test_no_help_line_is_cut_at_80_columns(ddpctl, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("COLUMNS", "80")
    shown = ddpctl("--help").stdout
    assert "..." not in shown.partition("Commands:")[2]
    assert max(map(len, shown.splitlines())) <= 80


def test_help_is_fast(ddpctl) -> None:  # type: ignore[no-untyped-def]
    slow = ("paramiko", "docker", "yaml", "rich", "asyncio")
    line = "import sys; import launcher.cli; launcher.cli.application(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    assert not [name for name in slow if name in done.stdout.split()]


@pytest.mark.parametrize("command", ["logs", "attach", "fetch", "kill", "resume", "stacks"])
def test_a_run_that_cannot_be_one_is_a_short_line(ddpctl, command: str) -> None:  # type: ignore[no-untyped-def]
    for run in ("x" * 3000, "../../etc", "a\nb", "\x1b[2J"):
        said = ddpctl(command, run, code=2).stderr
        assert said.count("\n") == 1 and len(said) < 300 and "\x1b" not in said


def test_nothing_starts_when_the_state_folder_cannot_be_written(ddpctl, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "state").write_text("in the way")
    (tmp_path / "h.yaml").write_text("hosts: [local]\njob: {engine: process, command: [t.py]}\n")
    said = ddpctl("launch", "h.yaml", "--no-check", code=1).stderr
    assert "cannot be created: not a directory" in said and said.count("\n") == 1


def test_a_bug_of_ours_is_one_line_with_the_details_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def broken() -> int:
        raise RuntimeError("boom")

    assert cli.with_exit_code(broken)() == 70
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    [path] = re.findall(r"internal error, details in (\S+)\n", said)
    assert "RuntimeError: boom" in Path(path).read_text()
    assert (Path(path).parent, Path(path).stat().st_mode & 0o777) == (tmp_path / "ddpctl", 0o600)
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")  # not a folder, so nothing can be saved in it
    assert cli.with_exit_code(broken)() == 70
    assert capsys.readouterr().err == "ddpctl: error: internal error, RuntimeError: boom\n"


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("clean hosts.yaml", 0, "nothing removed"),
        ("exec -t -- ls", 2, "-t: stdin is not a terminal"),
    ],
)
def test_a_closed_stdin_is_like_an_empty_one(
    tmp_path: Path, command: str, code: int, said: str
) -> None:
    machine = Machine(tmp_path)
    (tmp_path / "home" / ".ddpctl" / "workdirs" / "old").mkdir(parents=True)
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m launcher {command} <&-', machine.python],
        cwd=tmp_path,
        env=machine.env,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr


def test_a_broken_pipe_that_is_not_stdouts_is_an_internal_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def command() -> int:
        raise BrokenPipeError(32, "a host hung up")

    assert cli.with_exit_code(command)() == Exit.INTERNAL
    assert "internal error" in capsys.readouterr().err


def test_errors_put_no_escape_on_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def command() -> int:
        raise UsageError("gpu1: \x1b]0;owned\x07\x1b[2Jgone; look there")

    monkeypatch.setattr("launcher.commands.ps.ps", command)
    with pytest.raises(SystemExit) as ended:
        cli.application()(["ps"])
    assert ended.value.code == Exit.USAGE
    printed = capsys.readouterr().err
    assert printed.startswith("ddpctl: error: gpu1: ") and printed.endswith("gone; look there\n")
    assert "\x1b" not in printed and "\x07" not in printed


@pytest.mark.parametrize("asked", ["--help", "--version", "launch --help"])
def test_help_that_cannot_be_written_is_one_line(asked: str) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "launcher", *asked.split()]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "ddpctl: error: stdout: No space left on device\n"
