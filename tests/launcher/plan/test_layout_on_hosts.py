"""The layout of ~/.ddpctl/runs is written once in Python and once in sh; both say the same."""

from __future__ import annotations

import subprocess
from pathlib import Path

from launcher.plan import plan
from launcher.plan.plan import STORE, attempt_in, place_in, run_dir_in
from launcher.ssh.script_files import load_script


def test_scripts_and_python_find_the_control_folders_of_a_run(tmp_path: Path) -> None:
    run_dir = run_dir_in(f"{tmp_path}/{STORE}", "r1")
    places = [place_in(run_dir, "r1", 0, attempt) for attempt in (2, 10)]
    for place in places:
        Path(place.control_dir).mkdir(parents=True)
    folders = [place.control_dir for place in places]
    script = load_script(plan.__file__, "attempts.sh")
    script += (
        'for each in "$runs"/*/$attempts; do echo "$each"; done; cd "$each/.."; newest_attempt'
    )
    done = subprocess.run(
        ["sh", "-c", script], env={"HOME": str(tmp_path)}, capture_output=True, text=True
    )
    *listed, newest = done.stdout.splitlines()
    assert sorted(listed) == sorted(folders)
    assert newest == "attempt-10"


def test_a_control_folder_names_its_run_node_and_attempt() -> None:
    place = place_in("/home/ann/.ddpctl/runs/r1", "r1", 3, 12)
    assert attempt_in(place.control_dir) == ("r1", 3, 12)
    assert attempt_in(place.run_dir) is None
    assert attempt_in(f"{place.control_dir}/ranks") is None
