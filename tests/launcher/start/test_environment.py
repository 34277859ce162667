"""Values of the user's variables reach the ranks and nowhere else."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import pytest
from local_machine import Machine

SECRET, FILE_SECRET = "hunter2-in-env", "hunter3-in-file"
PRINTS = """
import os
print("got", os.environ["TOKEN"] == "hunter2" + "-in-env",
      os.environ["FROM_FILE"] == "hunter3" + "-in-file", os.environ["BOTH"])
raise SystemExit(0 if os.environ["DDPCTL_ATTEMPT"] == "2" else 3)
"""

LISTS = """
import contextlib, glob, os
for path in glob.glob("/proc/[0-9]*/cmdline"):
    with contextlib.suppress(OSError), open(path, "rb") as file:
        assert os.environ["TOKEN"].encode() not in file.read(), path
print("hidden")
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    (tmp_path / "code" / "train.py").write_text(PRINTS)
    (tmp_path / "secrets.env").write_text(f"FROM_FILE={FILE_SECRET}\nBOTH=file\n")
    return machine


FLAGS = ("--env", f"TOKEN={SECRET}", "--env", "BOTH=flag", "--env-file", "secrets.env")


def files_with(folder: Path, text: str) -> set[str]:
    return {
        path.name
        for path in folder.rglob("*")
        if path.is_file() and text.encode() in path.read_bytes()
    }


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_dry_run_prints_names_only(machine: Machine, form: tuple[str, ...]) -> None:
    plan = machine.ddpctl("launch", "hosts.yaml", "--dry-run", *FLAGS, *form).stdout
    assert "TOKEN" in plan and "FROM_FILE" in plan
    assert SECRET not in plan and FILE_SECRET not in plan


def test_values_stay_in_one_private_file_and_a_resume_knows_them(machine: Machine) -> None:
    machine.ddpctl("launch", "hosts.yaml", *FLAGS, code=1)
    resumed = machine.ddpctl("resume")
    assert resumed.stdout.count("got True True flag") == 4
    machine.ddpctl("fetch", "--to", "got")
    machine.ddpctl("report")
    assert files_with(machine.folder, SECRET) == {"env.json"}
    assert files_with(machine.folder, FILE_SECRET) == {"secrets.env"}
    [path] = (machine.folder / "state").rglob("env.json")
    assert path.stat().st_mode & 0o777 == 0o600
    assert files_with(machine.folder / "got", "TOKEN") >= {"run.json"}


def test_another_machine_resumes_with_the_values_of_its_own_hosts_file(machine: Machine) -> None:
    document = json.loads((machine.folder / "hosts.yaml").read_text())
    document["job"] |= {"env": {"TOKEN": SECRET, "BOTH": "env"}, "env_file": "secrets.env"}
    (machine.folder / "hosts.yaml").write_text(json.dumps(document))
    machine.ddpctl("launch", "hosts.yaml", code=1)
    machine.env["XDG_STATE_HOME"] = str(machine.folder / "other")
    resumed = machine.ddpctl("resume", "hosts.yaml")
    assert resumed.stdout.count("got True True env") == 4
    assert files_with(machine.folder / "other", SECRET) == {"env.json"}


def test_values_of_the_hosts_file_are_in_no_process_list(machine: Machine) -> None:
    (machine.folder / "code" / "train.py").write_text(LISTS)
    document = json.loads((machine.folder / "hosts.yaml").read_text())
    document["job"]["env"] = {"TOKEN": secrets.token_hex(16)}  # in no list of another test
    (machine.folder / "hosts.yaml").write_text(json.dumps(document))
    assert machine.ddpctl("launch", "hosts.yaml").stdout.count("hidden") == 4


def test_without_the_values_a_resume_is_refused(machine: Machine) -> None:
    machine.ddpctl("launch", "hosts.yaml", *FLAGS, code=1)
    [path] = (machine.folder / "state").rglob("env.json")
    path.unlink()  # as on a machine that only knows the run from its hosts
    refused = machine.ddpctl("resume", code=2)
    assert "does not have the values of TOKEN;" in refused.stderr
