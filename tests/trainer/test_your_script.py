"""The script of docs/your-script.md trains on two hosts, and resumes where it was stopped."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "your-script.md"
# ranks wait, as under ddpctl, and each is on a host of its own, with its own checkpoints
SITE = """
import atexit, os, time
atexit.register(time.sleep, 0.2)
if "RANK" in os.environ:  # not torchrun
    os.environ["DDPCTL_CHECKPOINT_DIR"] += "/host" + os.environ["RANK"]
"""


def run(script: Path, epochs: int) -> list[str]:
    """Return the lines that it prints, one for each epoch."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node", "2", str(script)],
        env={
            **os.environ,
            "EPOCHS": str(epochs),
            "OMP_NUM_THREADS": "1",
            "DDPCTL_CHECKPOINT_DIR": str(script.parent),
            "PYTHONPATH": str(script.parent),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return re.findall(r"epoch .*", done.stdout)


def test_the_script_on_the_page_trains_and_resumes(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    script.write_text(code)
    (tmp_path / "sitecustomize.py").write_text(SITE)
    (tmp_path / "host0").mkdir()
    (tmp_path / "host1").mkdir()
    whole = run(script, epochs=3)
    assert len(whole) == 3
    (tmp_path / "host0" / "last.pt").unlink()
    assert len(run(script, epochs=2)) == 2
    assert run(script, epochs=3) == whole[2:]
