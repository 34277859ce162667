"""The script of docs/your-script.md trains on two hosts, and resumes where it was stopped."""

from __future__ import annotations

import re
from pathlib import Path

from trainer_ranks import torchrun

PAGE = Path(__file__).parents[2] / "docs" / "your-script.md"
# each rank is on a host of its own, with its own checkpoints
RANK = """
import os, runpy
os.environ["DDPCTL_CHECKPOINT_DIR"] = "host" + os.environ["RANK"]
runpy.run_path("train.py", run_name="__main__")
"""


def run(folder: Path, epochs: int) -> list[str]:
    """Return the lines that it prints, one for each epoch."""
    done = torchrun(2, [folder / "rank.py"], folder, EPOCHS=str(epochs), OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout if line.startswith("epoch ")]


def test_the_script_on_the_page_trains_and_resumes(tmp_path: Path) -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "train.py").write_text(code)
    (tmp_path / "rank.py").write_text(RANK)
    (tmp_path / "host0").mkdir()
    (tmp_path / "host1").mkdir()
    whole = run(tmp_path, epochs=3)
    assert len(whole) == 3
    (tmp_path / "host0" / "last.pt").unlink()
    assert len(run(tmp_path, epochs=2)) == 2
    assert run(tmp_path, epochs=3) == whole[2:]
