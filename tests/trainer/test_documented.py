"""docs/trainer.md: every command in it works as written."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from clean_install import build, install
from torch.distributed.run import parse_args
from trainer_ranks import python, torchrun

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "trainer.md").read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with ddpctl's wheel, and without this checkout."""
    folder = tmp_path_factory.mktemp("clean")
    return install(build("wheel", folder / "dist"), folder / "installed")


def run(line: str, folder: Path, programs: Path) -> subprocess.CompletedProcess[list[str]]:
    """A line as a shell would run it, in processes that have imported torch already."""
    program, *words = shlex.split(line)
    [site] = (programs.parent / "lib").glob("python*/site-packages")
    if program == "python":
        return python(words, folder, PYTHONPATH=str(site))
    assert program == "torchrun"
    args = parse_args(words)
    assert args.standalone and args.module
    command = ["-m", args.training_script, *args.training_script_args]
    return torchrun(int(args.nproc_per_node), command, folder, PYTHONPATH=str(site))


@pytest.mark.parametrize("block", BLOCKS, ids=[str(number) for number in range(len(BLOCKS))])
def test_the_commands_of_a_block_work_one_after_the_other(
    block: str, tmp_path: Path, programs: Path
) -> None:
    for line in block.splitlines():
        done = run(line, tmp_path, programs)
        assert done.returncode == 0, "\n".join([line, *done.stdout, *done.stderr])


def test_a_command_works_by_real_torchrun(tmp_path: Path, programs: Path) -> None:
    line = next(line for block in BLOCKS for line in block.splitlines() if "torchrun" in line)
    argv = [str(programs / "torchrun"), *shlex.split(line)[1:]]
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    env |= {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True)
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
