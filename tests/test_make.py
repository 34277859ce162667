"""`make test`: what failed runs once more, in both halves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = """
import pathlib, pytest

def test_that_fails_once():
    ran = pathlib.Path("ran")
    assert ran.exists() or ran.touch()

@pytest.mark.cluster
@pytest.mark.xdist_group("hosts")
def test_that_fails_always():
    assert False
"""


@pytest.mark.slow
def test_a_test_that_fails_twice_fails_the_whole(tmp_path: Path) -> None:
    """Also one of a group, whose name xdist adds to the test's."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copy(ROOT / "tests/conftest.py", tmp_path)
    (tmp_path / "test_both_halves.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  cluster\n  real\n")
    for program in ("scripts/venv", "scripts/test-setup", "docker"):
        path = tmp_path / program
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "MAKE"))}
    env |= {"PATH": f"{tmp_path}:{env['PATH']}", "VENV": str(Path(sys.executable).parents[1])}
    done = subprocess.run(
        ["make", "test"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    _, again = done.stdout.split("what failed runs once more")
    assert "1 failed, 1 passed" in again
    assert done.returncode == 2
