"""docs/trainer.md: every command in it works as written."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "trainer.md").read_text(), re.DOTALL)
PROGRAMS = {
    "python": [sys.executable],
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
}


@pytest.mark.parametrize("block", BLOCKS, ids=[str(number) for number in range(len(BLOCKS))])
def test_the_commands_of_a_block_work_one_after_the_other(block: str, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for line in block.splitlines():
        program, *rest = shlex.split(line)
        done = subprocess.run(
            [*PROGRAMS[program], *rest], cwd=tmp_path, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


def test_there_are_commands() -> None:
    assert sum(len(block.splitlines()) for block in BLOCKS) >= 14


def test_the_table_of_flags_is_that_of_the_config() -> None:
    path = ROOT / "scripts" / "trainer_flags.py"
    spec = importlib.util.spec_from_file_location("trainer_flags", path)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    page = script.PAGE.read_text()
    assert "`--canonical-shards`" in page
    assert script.with_table(page) == page, "run: python scripts/trainer_flags.py"
