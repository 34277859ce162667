"""`ddpctl stacks` on runs of this machine: real supervisors, real ranks, the real command line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeCluster
from forked_ddpctl import forked_ddpctl
from quick_torchrun import python_with_quick_torchrun

pytestmark = pytest.mark.real

SCRIPT = """
import os, pathlib, time
rank, here = os.environ["RANK"], pathlib.Path(os.environ["DDPCTL_OUTPUT_DIR"])
def wait():
    while not (here / "go").exists():
        time.sleep(0.05)
def dawdle():
    wait()
(here / ("up" + rank)).touch()
(dawdle if rank == "3" else wait)()
print("went on", flush=True)
"""


class Machine:
    """One user on this machine, with one detached run of two nodes with two ranks each."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.python = folder, python_with_quick_torchrun(folder)
        (folder / "home").mkdir()
        (folder / "code").mkdir()
        (folder / "code" / "train.py").write_text(SCRIPT)
        job = {"engine": "process", "nproc_per_node": 2, "master_port": "auto", "workdir": "code"}
        hosts = [{"host": "local", "gpus": 0}, {"host": "local", "gpus": 0}]
        file = {"hosts": hosts, "job": {**job, "command": ["train.py"]}}
        (folder / "hosts.yaml").write_text(json.dumps(file))
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("DDPCTL_")}
        self.env |= {"HOME": str(folder / "home"), "XDG_STATE_HOME": str(folder / "state")}
        self.env["PYTHONPATH"] = str(Path(__file__).parents[3])
        self.run_id = self.ddpctl("launch", "hosts.yaml", "--detach", "--no-check").stdout.strip()

    def ddpctl(self, *argv: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        line = [self.python, "-m", "launcher", *argv]
        done = subprocess.run(
            line,
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=120,
            preexec_fn=forked_ddpctl(line, self.env),
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    @property
    def output(self) -> Path:
        return self.folder / "home/.ddpctl/runs" / self.run_id / "output"

    def all_up(self) -> None:
        end = time.monotonic() + 90
        while len(list(self.output.glob("up*"))) < 4:
            assert time.monotonic() < end, "the ranks did not start"
            time.sleep(0.05)

    def stacks(self, *argv: str) -> dict[str, Any]:
        """The document, once every rank is inside the function that it waits in."""
        end = time.monotonic() + 60
        while True:
            told: dict[str, Any] = json.loads(self.ddpctl("stacks", "--json", *argv).stdout)
            frames = [rank["frames"] for node in told["nodes"] for rank in node["ranks"]]
            if len(frames) == 4 and all(f and f[-1]["function"] == "wait" for f in frames):
                return told
            assert time.monotonic() < end, told


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.ddpctl("kill", made.run_id, "--hosts", "hosts.yaml")


def test_the_rank_elsewhere_is_named_and_the_run_goes_on(machine: Machine) -> None:
    machine.all_up()
    told = machine.stacks()
    assert told["elsewhere"] == [3] and told["run_id"] == machine.run_id
    assert [group["ranks"] for group in told["groups"]] == [[0, 1, 2], [3]]
    shown = machine.ddpctl("stacks", machine.run_id).stdout
    assert "\n0-2 (3)  local\n" in shown and "\n3  local\n" in shown
    assert "  train.py:8 in dawdle: wait()\n" in shown
    *_, sentence, caution = shown.splitlines()
    assert sentence.startswith("rank 3 on local is not where the other ranks are: at train.py:")
    assert caution.startswith("this is a snapshot")

    state = machine.folder / "state"
    shutil.rmtree(state)  # the launching machine is lost
    assert machine.stacks(machine.run_id, "--hosts", "hosts.yaml")["elsewhere"] == [3]

    (machine.output / "go").touch()
    attached = machine.ddpctl("attach", machine.run_id)
    assert attached.stdout.count("went on") == 4

    ended = machine.ddpctl("stacks", machine.run_id)
    assert ended.stdout == "" and "has ended" in ended.stderr
    assert json.loads(machine.ddpctl("stacks", "--json").stdout)["groups"] == []


def test_of_several_attempts_the_newest_is_shown(machine: Machine) -> None:
    machine.all_up()
    machine.ddpctl("kill", machine.run_id)
    for mark in machine.output.glob("up*"):
        mark.unlink()
    machine.ddpctl("resume", machine.run_id, "--detach")
    machine.all_up()
    assert machine.stacks()["attempt"] == 2


def test_a_node_that_does_not_answer_hides_no_other(machine: Machine) -> None:
    machine.all_up()
    machine.stacks()
    shutil.rmtree(machine.output.parent / "nodes" / "1")
    told = machine.ddpctl("stacks", "--json", code=4)
    document = json.loads(told.stdout)
    assert [rank["rank"] for node in document["nodes"] for rank in node["ranks"]] == [0, 1]
    assert [unseen["host"] for unseen in document["unseen"]] == ["local (2)"]
    assert told.stderr.startswith("ddpctl: error: local: ")
    assert "that host has no files of the node" in told.stderr  # as after `clean`


def test_if_no_host_answers_nothing_is_printed_but_the_error(
    fake_cluster: Callable[..., FakeCluster],
) -> None:
    cluster = fake_cluster()
    assert cluster.launch("--detach")[0] == 0
    for host in cluster:
        host.reachable = False
    code, out, err = cluster.ddpctl("stacks")
    assert (code, out) == (4, "") and "gpu[0-1]: no answer" in err


def test_a_run_that_waits_in_line_has_no_stacks_yet(
    fake_cluster: Callable[..., FakeCluster],
) -> None:
    """Its supervisors were waited for, and were said to be gone or paused."""
    cluster = fake_cluster(gpus=1, master_port="auto")
    assert cluster.launch("--detach")[0] == 0
    assert cluster.launch("--detach", "--wait", "5m")[0] == 0
    code, out, err = cluster.ddpctl("stacks")
    assert (code, out) == (2, "") and "is waiting in line and has nothing to show yet" in err, err
