"""engine: process on other hosts, which are reached through a real sshd and have no container engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import quick_torchrun
from local_machine import ON_TERMINAL, Machine
from sshd_server import Sshd
from tiny_wheel import tiny_wheel

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """Two nodes on a host that has torchrun in an environment of its own. Ranks print and sleep."""
    machine = Machine(tmp_path)
    home = tmp_path / "home"
    (home / ".ssh").mkdir(mode=0o700)
    sshd = Sshd(tmp_path / "sshd", home).start()
    sshd.know()
    document = json.loads((tmp_path / "hosts.yaml").read_text())
    host = {"host": sshd.address, "port": sshd.port, "gpus": 0}
    document["hosts"] = [host | {"identity_file": str(sshd.user_key)}] * 2
    document["job"]["python"] = machine.python
    (tmp_path / "hosts.yaml").write_text(json.dumps(document))
    yield machine
    sshd.stop()


def set_job(machine: Machine, **keys: str) -> None:
    """Set keys of `job:` in the hosts file."""
    document = json.loads((machine.folder / "hosts.yaml").read_text())
    document["job"] |= keys
    (machine.folder / "hosts.yaml").write_text(json.dumps(document))


@pytest.fixture
def requirements(machine: Machine) -> Path:
    """A list of packages: torchrun and one that the ranks import, both from a folder of wheels."""
    wheels = machine.folder / "wheels"
    source = Path(quick_torchrun.__file__).read_text()
    tiny_wheel(wheels, "run", {"runner.py": source}, scripts="torchrun = runner:main")
    tiny_wheel(wheels, "tiny", {"tiny.py": "answer = 42\n"})
    (machine.folder / "code" / "train.py").write_text(
        "import sys, tiny\nprint(tiny.answer, sys.prefix, flush=True)\n"
    )
    set_job(machine, requirements="requirements.txt", python=sys.executable)
    path = machine.folder / "requirements.txt"
    path.write_text("--no-index\n--find-links wheels\nrun\ntiny\n")
    return path


def shown(machine: Machine, run_id: str) -> list[str]:
    runs = json.loads(machine.ddpctl("ps", "hosts.yaml", "--all", "--json").stdout)["runs"]
    return [node["state"] for run in runs if run["run_id"] == run_id for node in run["nodes"]]


def test_a_run_on_another_host_succeeds_and_its_logs_stay(machine: Machine) -> None:
    done = machine.ddpctl("launch", "hosts.yaml")
    lines = [f"up {rank} ['two words', '$(x)'] attempt 1" for rank in range(4)]
    assert sorted(line.split("] ", 1)[1] for line in done.stdout.splitlines()) == lines
    assert [node["state"] for node in machine.record()["attempts"][0]["nodes"]] == ["SUCCEEDED"] * 2
    assert sorted(machine.ddpctl("logs").stdout.splitlines()) == sorted(done.stdout.splitlines())
    machine.ddpctl("clean", "hosts.yaml", "--yes")
    assert not [*(machine.folder / "home" / ".ddpctl").glob("runs/*/nodes")]


def test_a_failed_rank_stops_all_nodes_and_is_named_and_resume_starts_the_next_attempt(
    machine: Machine,
) -> None:
    script = """
import os, time
from pathlib import Path
kept = Path(os.environ["DDPCTL_CHECKPOINT_DIR"]) / "kept"
if os.environ["DDPCTL_ATTEMPT"] == "1":
    kept.touch()
    assert os.environ["RANK"] != "3", "boom"
    time.sleep(60)
print("resumed", kept.exists())
"""
    (machine.folder / "code" / "flaky.py").write_text(script)
    done = machine.ddpctl("launch", "hosts.yaml", "--", "flaky.py", code=1)
    assert "rank 3" in done.stderr and "AssertionError: boom" in done.stderr
    assert machine.ddpctl("resume").stdout.count("resumed True") == 4


def test_a_detached_run_outlives_the_connection_and_a_kill_leaves_nothing(machine: Machine) -> None:
    words = ["launch", "hosts.yaml", "--env", "SLEEP=600", "--env", "TOKEN=s3cret", "--detach"]
    run_id = machine.ddpctl(*words).stdout.strip()
    machine.wait_for_ranks()
    assert shown(machine, run_id) == ["running", "running"]
    script = 'echo "$TOKEN $DDPCTL_NODE_RANK"; echo no >&2; exit 5'
    done = machine.ddpctl("exec", "--rank", "2", "--", "sh", "-c", script, code=5)
    assert (done.stdout, done.stderr) == ("s3cret 1\n", "no\n")
    machine.env["TERM"] = "vt102"
    code, text = machine.in_terminal("exec", "-t", "--", "sh", "-c", ON_TERMINAL)
    assert (code, "vt102 ready" in text) == (42, True), text
    (machine.folder / "state").rename(machine.folder / "lost")  # this machine knows nothing
    machine.ddpctl("kill", run_id, "--hosts", "hosts.yaml")
    assert set(shown(machine, run_id)) <= {"cancelled"}
    deadline = time.monotonic() + 20
    while any("supervisor.pyz" in line or "train.py" in line for line in machine.left()):
        assert time.monotonic() < deadline, machine.left()
        time.sleep(0.1)


def test_a_supervisor_that_is_killed_leaves_nothing_behind(machine: Machine) -> None:
    script = (
        "import subprocess, time\nsubprocess.Popen(['sleep', '4321'], start_new_session=True)\n"
    )
    script += (
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up')\ntime.sleep(99)"
    )
    (machine.folder / "code" / "train.py").write_text(script)
    machine.ddpctl("launch", "hosts.yaml", "--no-check", "--detach")

    def daemons() -> int:
        return sum("4321" in line for line in machine.left())

    def until(count: int) -> None:
        deadline = time.monotonic() + 60
        while daemons() != count:
            assert time.monotonic() < deadline, machine.left()
            time.sleep(0.1)

    until(4)
    [pid] = (machine.folder / "home").glob(".ddpctl/runs/*/nodes/1/attempt-1/pid")
    os.kill(int(pid.read_text().split()[0]), signal.SIGKILL)
    until(0)  # the other node has stopped too
    assert machine.ddpctl("attach", code=1)
    failure = machine.record()["attempts"][0]["first_failure"]
    assert (failure["node_rank"], failure["kind"]) == (1, "container-killed")
    assert failure["message"] == "its supervisor was killed (exit code 137)"


def test_a_python_that_a_host_lacks_is_one_line(machine: Machine) -> None:
    set_job(machine, python="/opt/none/bin/python")
    done = machine.ddpctl("launch", "hosts.yaml", code=3)
    line = "there is no Python /opt/none/bin/python; set job.python or job.conda"
    assert line in done.stderr


def test_the_packages_of_a_job_are_installed_once_for_all_runs_and_hosts_need_no_pip(
    machine: Machine, requirements: Path
) -> None:
    store = machine.folder / "home" / ".ddpctl"
    done = machine.ddpctl("launch", "hosts.yaml", "--no-check")
    [venv] = [path for path in store.glob("venvs/*") if path.is_dir()]
    assert [line.split("] ")[1] for line in done.stdout.splitlines()] == [f"42 {venv}"] * 4
    assert "downloading the packages in requirements.txt for Python 3." in done.stderr
    made = (venv / "ready").stat().st_mtime_ns
    again = machine.ddpctl("launch", "hosts.yaml", "--no-push")
    assert "downloading" not in again.stderr and (venv / "ready").stat().st_mtime_ns == made

    (machine.folder / "wheels" / "tiny-1-py3-none-any.whl").unlink()
    tiny_wheel(machine.folder / "wheels", "tiny", {"tiny.py": "answer = 43\n"})
    pushed = json.loads(machine.ddpctl("push", "hosts.yaml", "--image", "--json").stdout)
    assert [host["image"] for host in pushed["hosts"]] == ["sent"]
    # the other wheel and pip, which the host has, are not sent again
    assert pushed["hosts"][0]["files_sent"] == 1 < pushed["hosts"][0]["files_skipped"]
    pruned = json.loads(machine.ddpctl("push", "hosts.yaml", "--prune", "-y", "--json").stdout)
    kinds = sorted(row["folder"].split("/")[2] for row in pruned["unused"])
    assert kinds in (
        [],
        ["wheels"],
        ["venvs", "wheels"],
    )  # the first ones, unless they are too young
    listed = machine.ddpctl("clean", "hosts.yaml", "--yes").stdout
    assert "/venvs" in listed and "/wheels" in listed and not store.exists()


def test_the_dependencies_of_a_pyproject_are_packages_too(
    machine: Machine, requirements: Path
) -> None:
    machine.env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(machine.folder / "wheels")}
    requirements.with_name("pyproject.toml").write_text(
        '[project]\nname = "x"\nversion = "1"\ndependencies = ["tiny"]\n'
    )
    set_job(machine, requirements="pyproject.toml")
    machine.ddpctl("push", "hosts.yaml", "--image")
    [python] = (machine.folder / "home" / ".ddpctl").glob("venvs/*/bin/python")
    done = subprocess.run([python, "-c", "import tiny; print(tiny.answer)"], capture_output=True)
    assert done.stdout == b"42\n"


def test_a_package_without_a_wheel_for_the_hosts_is_one_line(
    machine: Machine, requirements: Path
) -> None:
    tiny_wheel(machine.folder / "wheels", "winly", {"winly.py": ""}, tag="cp311-cp311-win_amd64")
    requirements.write_text(requirements.read_text() + "winly\n")
    done = machine.ddpctl("launch", "hosts.yaml", "--no-check", code=5)
    [line] = [line for line in done.stderr.splitlines() if "winly" in line]
    assert "requirements.txt for Python 3." in line
    assert "No matching distribution found for winly; name a version that has a wheel" in line


def test_a_host_that_cannot_install_the_packages_is_one_line_and_nothing_is_left(
    machine: Machine, requirements: Path
) -> None:
    python = machine.folder / "python-without-venv"
    refuse = f'*"-m venv"*) echo "{python}: No module named venv" >&2; exit 1'
    python.write_text(f'#!/bin/sh\ncase "$*" in {refuse}; esac\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    set_job(machine, python=str(python))
    done = machine.ddpctl("push", "hosts.yaml", code=5)
    assert "packages: " in done.stderr and "No module named venv; install that" in done.stderr
    assert not [p for p in (machine.folder / "home" / ".ddpctl" / "venvs").iterdir() if p.is_dir()]
