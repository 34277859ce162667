"""`ddpctl clean` on this machine: what it lists, what it leaves, what is gone afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from local_machine import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_everything_goes_once_it_was_listed_and_allowed(machine: Machine) -> None:
    machine.ddpctl("launch", "hosts.yaml", "--name", "c")
    folder = machine.folder / "home" / ".ddpctl"
    listed = machine.ddpctl("clean", "hosts.yaml")
    run_id = machine.record()["run_id"]
    assert f"local  {folder}/runs/{run_id}  " in listed.stdout
    assert "nothing removed; pass -y to remove " in listed.stderr
    assert (folder / "runs" / run_id / "output").is_dir()
    document = json.loads(machine.ddpctl("clean", "hosts.yaml", "-y", "--json").stdout)
    assert (document["removed"], [host["clean"] for host in document["hosts"]]) == (True, [True])
    assert not folder.exists()
    assert "no trace" in machine.ddpctl("clean", "hosts.yaml", "-y").stderr
    assert machine.record()["state"] == "SUCCEEDED"  # this machine's own record stays


def test_a_living_run_keeps_its_host_until_it_may_be_killed(machine: Machine) -> None:
    flags = ["--detach", "--env", "SLEEP=100"]
    run_id = machine.ddpctl("launch", "hosts.yaml", *flags).stdout.strip()
    folder = machine.folder / "home" / ".ddpctl"
    kept = machine.ddpctl("clean", "hosts.yaml", "-y")
    assert f"not cleaned: {run_id} is running" in kept.stderr
    assert (folder / "runs" / run_id).is_dir()
    live = json.loads(machine.ddpctl("ps", "hosts.yaml", "--json").stdout)["runs"]
    assert run_id in {run["run_id"] for run in live}  # others may run on this machine
    done = machine.ddpctl("clean", "hosts.yaml", "--kill", "-y")
    assert "local: clean" in done.stderr
    assert not folder.exists()
    assert machine.record()["state"] == "CANCELLED"


def test_a_folder_that_is_a_link_is_emptied_and_nothing_beside_it(machine: Machine) -> None:
    disk = machine.folder / "disk" / "ddpctl"
    disk.mkdir(parents=True)
    (disk / "datasets").mkdir()
    (disk.parent / "mine").write_text("stays")
    (machine.folder / "home" / ".ddpctl").symlink_to(disk)
    machine.ddpctl("clean", "hosts.yaml", "-y")
    assert not (machine.folder / "home" / ".ddpctl").is_symlink()
    assert list(disk.iterdir()) == []
    assert (disk.parent / "mine").read_text() == "stays"
