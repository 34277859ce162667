"""What a rank does for itself as its Python starts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.supervisor import sitecustomize

PRINTS = """
import os, resource
print(sorted(os.sched_getaffinity(0)), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def start(folder: Path, limits: str = "ulimit -Sn 1024", **env: str) -> list[str]:
    """Start Python as rank 1 of a node. Return what it prints."""
    shutil.copy(sitecustomize.__file__, folder)
    rank = {"RANK": "1", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "r", "PYTHONPATH": str(folder)}
    program = [sys.executable, "-S", "-c", f"import sitecustomize{PRINTS}"]
    done = subprocess.run(
        ["sh", "-c", f'{limits} && exec "$@"', "sh", *program],
        env={**os.environ, **rank, **env},
        capture_output=True,
        text=True,
        check=True,
    )
    assert not done.stderr
    return done.stdout.rsplit(maxsplit=2)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_rank_runs_on_its_own_cores_as_far_as_it_may(tmp_path: Path) -> None:
    every = sorted(os.sched_getaffinity(0))
    first, *others = every
    cores = ",".join(map(str, others))
    assert start(tmp_path, DDPCTL_RANK_CORES=f"{first} {cores},60000-60003")[0] == str(others)
    for odd in ("", f"{first}", f"{first} x", f"{first} 60000"):
        assert start(tmp_path, DDPCTL_RANK_CORES=odd)[0] == str(every)


def test_a_rank_may_open_more_files_than_the_soft_limit(tmp_path: Path) -> None:
    assert start(tmp_path, "ulimit -Sn 256 && ulimit -Hn 3000")[1:] == ["3000", "3000"]
    assert int(start(tmp_path, "ulimit -Sn 256")[1]) <= sitecustomize.OPEN_FILES
    assert start(tmp_path, "ulimit -Sn 2000 && ulimit -Hn 2000")[1:] == ["2000", "2000"]
