"""The examples of docs/python.md, run as cells of a notebook, in a thread: real recorders and ranks."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from local_machine import Machine

ROOT = Path(__file__).parents[3]
TRAIN = """
import os
with open(os.path.join(os.environ["DDPCTL_OUTPUT_DIR"], "rank" + os.environ["RANK"]), "w") as out:
    out.write("done")
print("trained", os.environ["RANK"])
"""
# As IPython runs cells: in __main__, which has no file, with their text in linecache.
NOTEBOOK = """
import json, linecache, sys, threading
import __main__
errors = []

def run_all():
    try:
        for number, cell in enumerate(json.loads(sys.argv[1])):
            name = f"<cell {number}>"
            linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
            exec(compile(cell, name, "exec"), vars(__main__))
    except BaseException as error:
        errors.append(error)
        raise

thread = threading.Thread(target=run_all)
thread.start()
thread.join()
sys.exit(len(errors))
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    (tmp_path / "code" / "train.py").write_text(TRAIN)
    return made


def cells(page: str) -> list[str]:
    found = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert len(found) == 4
    return found


def test_the_examples_work_in_a_notebook_and_print_only_what_they_say(machine: Machine) -> None:
    argv = [
        machine.python,
        "-c",
        NOTEBOOK,
        json.dumps(cells((ROOT / "docs/python.md").read_text())),
    ]
    done = subprocess.run(
        argv, cwd=machine.folder, env=machine.env, capture_output=True, text=True, timeout=200
    )
    assert (done.returncode, done.stderr) == (0, "")
    *trained, end, gathered, error, remote = done.stdout.split("\n", 7)
    assert sorted(trained) == [f"[local:{rank}] trained {rank}" for rank in range(4)]
    assert end == "SUCCEEDED None"
    [output] = machine.folder.glob("results/*/output")
    assert {path.name for path in output.iterdir()} == {f"rank{rank}" for rank in range(4)}
    assert gathered == "[0, 10, 20, 30]"
    assert error == "lr 3.0 is too large"
    assert (
        "local: " in remote
        and "rank 1: ValueError" in remote
        and "in train\n    raise ValueError(f" in remote
    )
    assert not (machine.folder / "code" / "results").exists()
