"""A benchmark that lacks something says so in one line, and each has a `make` target."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[1]
SCRIPTS = {
    path.stem for path in (ROOT / "benchmarks").glob("*.py") if "def main" in path.read_text()
}
BENCHMARKS = sorted(SCRIPTS - {"seed_recipe", "modes"})  # which benchmarks/trainer.py runs


def test_make_has_a_target_for_each_benchmark() -> None:
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    (targets,) = re.findall(r"(?m)^BENCHES = (.*)$", makefile)
    assert targets.split() == [f"bench-{name}" for name in BENCHMARKS]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_missing_need_is_one_line_with_the_remedy(name: str, tmp_path: Path) -> None:
    bare = ["-S"] if name == "trainer" else []  # without site-packages there is no torch
    argv = [sys.executable, *bare, "-m", f"benchmarks.{name}"]
    env = {"PATH": "", "HOME": str(tmp_path)}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert line.startswith(f"benchmarks.{name}: ")
    assert f"`make bench-{name}`" in line or "needs root" in line
